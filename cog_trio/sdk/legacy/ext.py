"""`cog.ext` of older releases, which was empty as well."""
