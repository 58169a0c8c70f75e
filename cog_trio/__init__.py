"""cog-trio: serves machine-learning models written for Cog, on trio."""
