"""`cog.response` of older releases."""

from cog_trio.sdk._legacy_schema import PredictionResponse, Status

__all__ = ["PredictionResponse", "Status"]
