"""Reading annotations: each by itself, from whatever form it was written in, to plain types.

An annotation may be an object, text (quoted, or by ``from __future__ import annotations``) or a mix. A name that cannot
be resolved becomes a placeholder class, which takes part in any type expression; it is a fault of its one parameter,
and only if it is still there outside of ``Annotated[..., Opaque]`` (types imported under ``TYPE_CHECKING``). The
alternative, evaluating all at once, lets one such name hide the types of all other inputs.

`options` then takes off the wrappers that say nothing about the JSON form (Annotated, NewType, type aliases), flattens
unions and sorts None out.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from ._opaque import Opaque

NoneType = type(None)


class _Unresolved(type):
    """Class of the placeholders: stands for a name in any type expression."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(f"{cls.__name__}.{name}")

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls


def placeholder(name: str) -> Any:
    return _Unresolved(name, (), {})


def is_unresolved(kind: object) -> bool:
    return isinstance(kind, _Unresolved)


def unresolved_names(annotation: Any) -> list[str]:
    """The names that could not be resolved anywhere in a type, but under ``Opaque``."""
    if is_unresolved(annotation):
        return [annotation.__name__]
    if get_origin(annotation) is Annotated:
        return [] if _is_opaque(annotation) else unresolved_names(annotation.__origin__)
    if get_origin(annotation) is Literal:
        return []
    return [name for part in get_args(annotation) for name in unresolved_names(part)]


@dataclass(frozen=True)
class Namespace:
    """Where the names of an annotation are looked up: class, closure, module, builtins, in this order.

    A function defined in a class does not count there: a method called ``list`` must not hide the type.
    """

    module: dict[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)

    def evaluate(self, annotation: Any) -> Any:
        """The object that an annotation stands for; text inside it (``Optional["X"]``) stays for `options`.

        Raises:
          TypeError: if the text is not an expression, or fails.
        """
        if isinstance(annotation, str):
            return self._evaluate_text(annotation)
        if isinstance(annotation, ForwardRef):
            module = sys.modules.get(getattr(annotation, "__forward_module__", None) or "")
            space = self if module is None else Namespace(module.__dict__, self.local)
            return space._evaluate_text(annotation.__forward_arg__)
        return NoneType if annotation is None else annotation

    def _evaluate_text(self, text: str) -> Any:
        try:
            code = compile("(" + text.strip() + "\n)", "<annotation>", "eval")
            found = eval(code, self.module, _Names(self))
        except Exception as error:
            raise TypeError(f"cannot read the annotation {text!r}: {type(error).__name__}: {error}") from error
        return self.evaluate(found)  # a quoted text in the text


class _Names(dict[str, Any]):
    """The locals of an evaluation: everything, and placeholders for what is nowhere."""

    def __init__(self, space: Namespace) -> None:
        super().__init__(space.local)
        self._space = space

    def __missing__(self, name: str) -> Any:
        for scope in (self._space.module, builtins.__dict__):
            if name in scope:
                return scope[name]
        return placeholder(name)


def class_names(cls: type) -> dict[str, Any]:
    """What annotations in the body of ``cls`` (or its methods) may name, beside the module."""
    names = {cls.__name__: cls}
    for base in reversed(cls.__mro__):
        names.update({k: v for k, v in vars(base).items() if not k.startswith("__") and _may_be_type(v)})
    return names


def _may_be_type(value: object) -> bool:
    return isinstance(value, type) or get_origin(value) is not None or isinstance(value, TypeVar)


def of_function(function: Callable[..., Any], owner: type | None = None) -> Namespace:
    """The namespace of a function's annotations; ``owner`` is the class that it was found in."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    local = {} if owner is None else class_names(owner)
    for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        try:
            local[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return Namespace(inner.__globals__, local)


def of_class(cls: type) -> Namespace:
    """The namespace of the annotations in one class body."""
    module = sys.modules.get(cls.__module__)
    return Namespace({} if module is None else module.__dict__, class_names(cls))


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations in the body of ``cls``, not of its bases, unevaluated where they can be."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))
    return inspect.get_annotations(cls)


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """`inspect.signature`, which on Python 3.14 must be told not to stumble over unresolved names."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


@dataclass(frozen=True)
class UnionMember:
    """One member of a union (or the whole of what is none), without wrappers."""

    type: Any
    opaque: bool = False


def peel(annotation: Any, space: Namespace, opaque: bool = False) -> UnionMember:
    """Take off Annotated, NewType, type aliases and quotes."""
    while True:
        annotation = space.evaluate(annotation)
        alias = typing.get_origin(annotation) or annotation
        if get_origin(annotation) is Annotated:
            opaque = opaque or _is_opaque(annotation)
            annotation = annotation.__origin__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(alias).__name__ == "TypeAliasType":
            parameters = get_args(annotation)
            annotation = alias.__value__[parameters] if parameters else alias.__value__
        else:
            return UnionMember(annotation, opaque)


def _is_opaque(annotated: Any) -> bool:
    return any(note is Opaque for note in annotated.__metadata__)


def options(annotation: Any, space: Namespace) -> tuple[list[UnionMember], bool]:
    """The members of an annotation in written order, None taken out, and whether None was among them."""
    found: list[UnionMember] = []
    nullable = False
    queue = [(annotation, False)]
    while queue:
        item, opaque = queue.pop(0)
        option = peel(item, space, opaque)
        if get_origin(option.type) in (Union, types.UnionType):
            queue[:0] = [(member, option.opaque) for member in get_args(option.type)]
        elif option.type is NoneType:
            nullable = True
        elif get_origin(option.type) is Literal and None in get_args(option.type):
            nullable = True
            if rest := tuple(value for value in get_args(option.type) if value is not None):
                found.append(UnionMember(Literal[rest], option.opaque))
        elif option not in found:
            found.append(option)
    return found, nullable


def is_typed_dict(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


def type_name(annotation: Any) -> str:
    """How to write an annotation in a message."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__qualname__ if annotation is not NoneType else "None"
    return str(annotation).replace("typing.", "")
