"""`cog.server`: modules that models of older releases import, and the server's command line."""
