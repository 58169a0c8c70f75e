"""The version that models and documents see: that of the Cog release we stand in for, with ours as its local part."""

from cog_trio._version import SDK_VERSION as __version__

__all__ = ["__version__"]
