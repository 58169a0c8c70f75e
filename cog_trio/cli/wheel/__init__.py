"""``cog-trio wheel``."""
