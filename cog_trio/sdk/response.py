"""`cog.response` of older releases."""

from ._legacy_schema import PredictionResponse, Status

__all__ = ["PredictionResponse", "Status"]
