"""What was asked for: flags, variables, cog.yaml, certificate."""
