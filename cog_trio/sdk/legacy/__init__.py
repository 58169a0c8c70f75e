"""Modules that only models of older Cog releases import: `cog.files` is `cog_trio.sdk.legacy.files`."""
