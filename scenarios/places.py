"""Where models are that scenarios name by their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MODELS: Final = Path(__file__).parent / "models"  # found by name, as pyproject.toml says (cog_trio_models)
EXAMPLES: Final = Path(__file__).parent.parent / "docs" / "examples"
SPARED: Final = "-p no:schemathesis -p no:anyio -p no:hypothesispytest"  # plugins of ours that a user does not have
