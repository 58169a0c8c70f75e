"""`cog.command`: command lines of older releases."""
