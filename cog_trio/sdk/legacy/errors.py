"""Errors of older releases about ``cog.yaml``; kept for models that catch them."""


class CogError(Exception):
    """Base of Cog's errors."""


class ConfigDoesNotExist(CogError):
    """There is no ``cog.yaml``."""


class PredictorNotSet(CogError):
    """``cog.yaml`` names no model."""
