"""``cog-trio serve``."""
