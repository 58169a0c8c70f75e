"""``cog-trio doctor``."""
