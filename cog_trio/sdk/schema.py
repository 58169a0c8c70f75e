"""From a signature to its OpenAPI document; what the worker asks for when a model is loaded.

`describe` reads one callable: a `Signature` with its `Parameter` list, the form of its output and whether it streams.
`document` makes the OpenAPI document of one or two of them. `Parameter` is also what the worker knows of one input
beyond the document: how to turn the JSON value of a request into what ``run`` gets. The parent gets its own, smaller
table (`protocol.Input`); ``load.py`` makes it from this one.

The module is `cog.schema` as well, whose names of older releases (`Status`, `PredictionRequest`, ...) are made when a
model asks for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from ._annotations import of_function, options, signature
from ._decorators import STREAMING
from ._document import PREDICT, TRAIN, SchemaMode, Signature, document
from ._input_types import SCALARS
from ._notice import notice
from ._outputs import is_stream, read_output
from ._parameters import FAULT_END, MISSING, InputKind, Parameter, Parameters, read_inputs
from .input import FieldInfo

__all__ = [
    "MISSING",
    "PREDICT",
    "TRAIN",
    "InputKind",
    "Parameter",
    "Parameters",
    "SchemaMode",
    "Signature",
    "describe_signature",
    "document",
    "marked",
    "notice",
]


def describe_signature(function: Callable[..., Any], *, owner: type | None = None, name: str = "run") -> Signature:
    """Read a callable's signature; bound methods come without ``self``.

    ``owner`` is the class whose body its annotations may name; ``name`` is how messages call it.

    Raises:
      TypeError, ValueError: naming every parameter (or the output) that can't be described, and what to write instead.
    """
    space = of_function(_definition(function), owner)
    errors: list[Exception] = []
    inputs, output = Parameters(()), dict[str, Any]()
    streaming = marked(function, STREAMING) is not None
    try:
        _check_self(function, name)
        inputs = read_inputs(function, space)
    except (TypeError, ValueError) as error:
        errors.append(error)
    returned = signature(function).return_annotation
    try:
        if returned is inspect.Signature.empty:
            raise TypeError(f"{name}() has no return annotation; write its output type, or -> Any")
        output = read_output(returned, space)
        if streaming and not is_stream(returned, space):
            raise ValueError(
                f"@streaming needs an iterator as the output of {name}(): Iterator[T], AsyncIterator[T], "
                "ConcatenateIterator[str] or AsyncConcatenateIterator[str]"
            )
    except (TypeError, ValueError) as error:
        errors.append(error)
    if errors:
        kind = TypeError if any(isinstance(error, TypeError) for error in errors) else ValueError
        raise kind(FAULT_END.join(str(error) for error in errors))
    return Signature(inputs, output, streaming)


def _check_self(function: Callable[..., Any], name: str) -> None:
    """A method whose author forgot ``self`` takes the object for its first input.

    Raises:
      TypeError: telling how to write it.
    """
    if not inspect.ismethod(function) or inspect.isclass(function.__self__):
        return
    first = next(iter(signature(function.__func__).parameters.values()), None)
    if first is not None and first.kind is not first.VAR_POSITIONAL and first.annotation is not first.empty:
        members, _ = options(first.annotation, of_function(_definition(function)))
        if any(member.type in SCALARS for member in members) or isinstance(first.default, FieldInfo):
            raise TypeError(f"{name}() is a method without self: write {name}(self, {first.name}: ...)")


def marked(function: Any, mark: str) -> Any:
    """The value of a decorator's mark on a function or on anything along ``__wrapped__``, None if it has none."""
    while function is not None:
        function = getattr(function, "__func__", function)
        value = getattr(function, "__dict__", {}).get(mark)
        if value is not None:
            return value
        function = getattr(function, "__wrapped__", None)
    return None


def _definition(function: Any) -> Callable[..., Any]:
    """The def behind a callable: of a partial its function, of an object its ``__call__``."""
    while True:
        function = inspect.unwrap(function)
        if inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "func") and hasattr(function, "keywords"):
            function = function.func
        elif not hasattr(function, "__code__"):
            return type(function).__call__
        else:
            return function  # type: ignore[no-any-return]


_LEGACY: Final = frozenset(
    {"PredictionRequest", "PredictionResponse", "Status", "TrainingRequest", "TrainingResponse", "WebhookEvent"}
)


def __getattr__(name: str) -> Any:
    if name in _LEGACY:
        from . import _legacy_schema

        return getattr(_legacy_schema, name)
    raise AttributeError(f"module 'cog.schema' has no attribute {name!r}")
