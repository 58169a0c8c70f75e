"""``cog-trio schema``."""
