"""`cog.base_predictor` of older releases."""

from .predictor import BasePredictor

__all__ = ["BasePredictor"]
