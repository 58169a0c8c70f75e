"""``cog-trio run`` and ``cog-trio train``."""
