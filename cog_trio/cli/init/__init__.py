"""``cog-trio init``."""
