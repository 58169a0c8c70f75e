"""`BaseRunner`, which models may derive from; `cog.predictor` is where they find it.

The base classes define neither ``train`` nor ``healthcheck``: that an instance has one means that its author wrote it.
"""

from __future__ import annotations

import warnings
from typing import Any

from .scope import Scope, current_scope


class BaseRunner:
    """A model: ``setup`` runs once, ``run`` once a prediction."""

    def setup(self, weights: Any = None) -> None:
        """Prepare the model; override it if there is anything to prepare."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Make one prediction; override it."""
        if type(self).predict is not BaseRunner.predict:
            return self.predict(*args, **kwargs)
        raise NotImplementedError(f"{type(self).__name__} must define run()")

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """The old name of `run`."""
        warnings.warn("predict() is deprecated, call run()", DeprecationWarning, stacklevel=2)
        return self.run(*args, **kwargs)

    @property
    def scope(self) -> Scope:
        """The running prediction; see `current_scope`."""
        return current_scope()

    def record_metric(self, key: str, value: Any, mode: str = "replace") -> None:
        """Record a metric of the running prediction; see `Scope.record_metric`."""
        self.scope.record_metric(key, value, mode)


class BasePredictor(BaseRunner):
    """The old name of `BaseRunner`."""


for _public in (BaseRunner, BasePredictor):
    _public.__module__ = "cog.predictor"
