"""`BaseRunner`, which models may derive from, and the loading functions that Cog offers beside it."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable
from typing import Any

from ._runner import BasePredictor, BaseRunner

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
