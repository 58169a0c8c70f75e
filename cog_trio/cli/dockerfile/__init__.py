"""``cog-trio dockerfile``."""
