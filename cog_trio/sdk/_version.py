"""The version that models and documents see: that of the Cog release we stand in for, with ours as its local part."""

from typing import Final

COG: Final = "0.23.1"  # the release of Cog whose promises this SDK keeps
RELEASE: Final = "0.1.0"  # of cog-trio; a test holds it to the package's metadata
__version__: Final = f"{COG}+trio.{RELEASE}"  # PEP 440: a local version compares above the plain one
