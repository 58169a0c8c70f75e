"""`cog.logging` of older releases."""

from __future__ import annotations

import logging
import sys


def setup_logging(*, log_level: int = logging.INFO) -> None:
    """Send log records to stderr, where they become the logs of a prediction. Does nothing where handlers exist."""
    logging.basicConfig(level=log_level, stream=sys.stderr, format="%(message)s")
