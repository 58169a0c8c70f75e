"""From a signature to its OpenAPI document.

`Parameter` is what the worker knows about one input beyond the document: how to turn the request's JSON value into
what `run` gets. The parent gets its own, smaller table (`protocol.Input`); `worker/runner.py` makes it from this one.

The module is also `cog.schema`, whose names of older releases (`Status`, `PredictionRequest`, ...) are made when a
model asks for them.
"""

from __future__ import annotations

from ._parameters import MISSING, Parameter

__all__ = ["MISSING", "Parameter"]
