"""`BaseRunner`, which models may derive from, and the loading functions that Cog offers beside it.

The base classes define neither ``train`` nor ``healthcheck``: that an instance has one means that its author wrote it.
"""

from __future__ import annotations

import inspect
import os
import types
import warnings
from collections.abc import Callable
from typing import Any

from .scope import Scope, current_scope

__all__ = [
    "BasePredictor",
    "BaseRunner",
    "extract_setup_weights",
    "get_healthcheck",
    "get_predict",
    "get_predictor",
    "get_train",
    "get_weights_type",
    "has_setup_weights",
    "load_predictor_from_ref",
]


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


def load_predictor_from_ref(ref: str) -> Any:
    """The instance (or function) that ``file.py:Name`` or ``file.py`` stands for."""
    from ._loader import load_object

    return load_object(ref)


def has_setup_weights(predictor: Any) -> bool:
    """Whether ``predictor.setup`` has a parameter ``weights``."""
    setup = getattr(predictor, "setup", None)
    return callable(setup) and "weights" in inspect.signature(setup).parameters


def extract_setup_weights(predictor: Any) -> Any:
    """What ``setup`` gets as weights: None, or ``COG_WEIGHTS`` in the type that its parameter names."""
    from ._loader import weights_value

    return weights_value(predictor.setup, os.environ.get("COG_WEIGHTS"))


def get_predict(predictor: Any) -> Callable[..., Any]:
    """The method (or function) that makes a prediction."""
    from ._loader import predict_target

    return predict_target(predictor).call


def get_train(predictor: Any) -> Callable[..., Any]:
    """The method (or function) that trains."""
    from ._loader import train_target

    return train_target(predictor).call


def get_healthcheck(predictor: Any) -> Callable[..., Any] | None:
    """The model's own health check, if it has one."""
    healthcheck = getattr(predictor, "healthcheck", None)
    return healthcheck if callable(healthcheck) and not inspect.isroutine(predictor) else None


def get_weights_type(setup_function: Callable[..., Any]) -> Any:
    """`Path`, `File`, or None: how ``setup`` wants its weights."""
    from ._loader import weights_type

    return weights_type(setup_function)


def get_predictor(module: types.ModuleType, class_name: str) -> Any:
    """An instance of the class of that name, or the function."""
    found = getattr(module, class_name)
    return found() if inspect.isclass(found) else found


for _public in (BaseRunner, BasePredictor):
    _public.__module__ = "cog.predictor"
