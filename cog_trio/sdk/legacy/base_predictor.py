"""`cog.base_predictor` of older releases."""

from cog_trio.sdk.predictor import BasePredictor

__all__ = ["BasePredictor"]
