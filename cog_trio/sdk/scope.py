"""The current prediction, as user code sees it: its context, and the metrics it records.

The worker makes one `Scope` a run and names the code that belongs to it::

    scope = Scope(context={...}, record=record)    # record(name, value, mode), see `Record`
    token = enter(scope)                           # in the context that will run the user's code
    try: ...
    finally:
        leave(token)
        scope.close()                              # from here it does nothing, wherever user code has kept it

A scope is found through a context variable. Where that is unset (a thread that the model made), `set_fallback` names
who is asked. The worker answers only when it has one slot and one active prediction; else there is an inert scope.
Modes, names, values and the type of each metric are checked here, in the user's stack, before ``record`` is called;
what ``record`` raises, the user sees. ``record`` gets plain JSON data that nobody else holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any, Final, Literal, TypeAlias

Mode: TypeAlias = Literal["replace", "increment", "append"]
Record: TypeAlias = Callable[[str, Any, Mode], None]
"""Takes name, value and mode. The value None (in mode ``replace``) deletes the metric."""

MODES: Final[dict[str, Mode]] = {
    "replace": "replace",
    "incr": "increment",
    "increment": "increment",
    "append": "append",
}
MAX_NAME: Final = 128  # characters
MAX_SEGMENTS: Final = 4
_BAD_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_]")


class MetricRecorder:
    """Write-only view of a prediction's metrics: ``record``, ``delete``, ``m[key] = value``, ``del m[key]``."""

    __slots__ = ("_held", "_record")

    def __init__(self, record: Record | None) -> None:
        self._record = record
        self._held: dict[str, str] = {}  # name -> kind of its value, which may not change (type lock)

    def record(self, key: str, value: Any, mode: str | None = None) -> None:
        """Record a metric.

        Raises:
          TypeError: for an unknown mode, a value that is not JSON data, or one of another kind than the metric has.
          ValueError: for a bad name, NaN or infinity.
        """
        if mode is not None and (not isinstance(mode, str) or mode not in MODES):
            raise TypeError(f"unknown metric mode {mode!r}: use 'replace', 'incr' (or 'increment') or 'append'")
        key = _text(key)
        record = self._record
        if record is None:
            return
        chosen = MODES[mode or "replace"]
        if value is None and chosen == "replace":
            self.delete(key)
            return
        _check_name(key)
        _check_reserved(key)
        kind, plain = _plain_metric(key, value)
        if chosen == "append":
            kind = "list"
        else:
            if chosen == "increment" and kind != "number":
                raise TypeError(f"metric {key!r}: only int and float can be incremented by, got {_type(value)}")
            held = self._held.get(key, kind)
            if held != kind:
                raise TypeError(
                    f"metric {key!r} holds a {held}, it cannot take a {_type(value)} without deleting first: "
                    f"del scope.metrics[{key!r}]"
                )
        record(key, plain, chosen)
        self._held[key] = kind

    def delete(self, key: str) -> None:
        """Remove a metric, and with it the lock on its type; one that is not there is no error."""
        key = _text(key)
        record = self._record
        if record is None:
            return
        _check_name(key)
        record(key, None, "replace")
        for name in [name for name in self._held if name == key or name.startswith(key + ".")]:
            self._held.pop(name, None)

    def __setitem__(self, key: str, value: Any) -> None:
        self.record(key, value)

    def __delitem__(self, key: str) -> None:
        self.delete(key)

    def __repr__(self) -> str:
        return "<MetricRecorder>" if self._record is not None else "<MetricRecorder, inactive>"


class Scope:
    """One prediction: `context`, `metrics`, `record_metric`. Made by the worker; inert when it has ended.

    ``record_metric`` as argument is how `cog.server.scope.Scope` of older releases was made: a function of name and
    value, which gets every recorded value as it is.
    """

    __slots__ = ("_context", "_metrics")

    def __init__(
        self,
        *,
        context: Mapping[str, str] | None = None,
        record: Record | None = None,
        record_metric: Callable[[str, Any], None] | None = None,
    ) -> None:
        if record is None and record_metric is not None:
            old = record_metric

            def record(name: str, value: Any, mode: Mode) -> None:
                old(name, value)

        self._context: dict[str, str] = dict(context or {})
        self._metrics = MetricRecorder(record)

    @property
    def context(self) -> dict[str, str]:
        """What the request sent as ``context``."""
        return self._context

    @property
    def metrics(self) -> MetricRecorder:
        return self._metrics

    def record_metric(self, key: str, value: Any, mode: str | None = None) -> None:
        """See `MetricRecorder.record`."""
        self._metrics.record(key, value, mode)

    def close(self) -> None:
        """Make the scope inert: what user code records after this goes nowhere."""
        self._metrics._record = None

    def evolve(
        self, *, context: Mapping[str, str] | None = None, record_metric: Callable[[str, Any], None] | None = None
    ) -> Scope:
        """A scope like this one but for what is given. It shares the metrics, unless ``record_metric`` is given."""
        scope = Scope(context=self._context if context is None else context, record_metric=record_metric)
        if record_metric is None:
            scope._metrics = self._metrics
        return scope

    def __repr__(self) -> str:
        return f"<Scope context={self._context!r}>"


current_variable: Final[ContextVar[Scope | None]] = ContextVar("cog_scope", default=None)
_fallback: Callable[[], Scope | None] | None = None


def current_scope() -> Scope:
    """The scope of the running prediction; outside of one, a scope that does nothing. Never None."""
    scope = current_variable.get()
    if scope is None and _fallback is not None:
        scope = _fallback()
    return Scope() if scope is None else scope


def enter(scope: Scope) -> Token[Scope | None]:
    """Make ``scope`` the current one of this context, until `leave` gets the token."""
    return current_variable.set(scope)


def leave(token: Token[Scope | None]) -> None:
    """Undo `enter`, in the same context."""
    current_variable.reset(token)


def set_fallback(find: Callable[[], Scope | None] | None) -> None:
    """Say who is asked where the context variable is unset; called on any thread, None stands for "nobody"."""
    global _fallback
    _fallback = find


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a metric's name must be a str, got {_type(name)}")
    if not name:
        raise ValueError("a metric's name must not be empty")
    if len(name) > MAX_NAME:
        raise ValueError(f"metric name {name[:32]!r}... is too long: at most {MAX_NAME} characters")
    segments = name.split(".")
    if len(segments) > MAX_SEGMENTS:
        raise ValueError(f"metric name {name!r} must have at most {MAX_SEGMENTS} dot-separated segments")
    if name.startswith("."):
        raise ValueError(f"metric name {name!r} must not start with a dot")
    if name.endswith("."):
        raise ValueError(f"metric name {name!r} must not end with a dot")
    if "" in segments:
        raise ValueError(f"metric name {name!r} must not have empty segments")
    for segment in segments:
        _check_segment(name, segment)


def _check_segment(name: str, segment: str) -> None:
    if not (segment[0].isascii() and segment[0].isalpha()):
        raise ValueError(f"metric name {name!r}: each segment must start with a letter")
    if "__" in segment:
        raise ValueError(f"metric name {name!r} must not contain consecutive underscores")
    if _BAD_CHARACTER.search(segment):
        raise ValueError(f"metric name {name!r} must contain only ASCII letters, digits and underscores")
    if segment.endswith("_"):
        raise ValueError(f"metric name {name!r}: each segment must end with a letter or digit")


def _check_reserved(name: str) -> None:
    if name == "predict_time":
        raise ValueError("metric name 'predict_time' is reserved: the runtime records it")
    if name.startswith("cog."):
        raise ValueError(f"metric name {name!r}: the prefix 'cog.' is reserved")


def _plain_metric(key: str, value: Any) -> tuple[str, Any]:
    """Kind (for the type lock) and copy of a metric's value."""
    for types, kind in (((bool,), "bool"), ((int, float), "number"), ((str,), "str"), ((list,), "list")):
        if isinstance(value, types):
            return kind, _plain(key, value)
    if isinstance(value, dict):
        return "dict", _plain(key, value)
    raise TypeError(f"metric {key!r}: the value must be a bool, int, float, str, list or dict, got {_type(value)}")


def _plain(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"metric {key!r}: {value} is not a number that JSON knows")
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [_plain(key, item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"metric {key!r}: the keys of a dict must be str")
        return {str.__str__(name): _plain(key, item) for name, item in value.items()}
    raise TypeError(f"metric {key!r}: {_type(value)} is not JSON data")


def _text(key: str) -> str:
    """Return the key as plain text where it is of a subclass of str."""
    return str.__str__(key) if isinstance(key, str) else key


def _type(value: object) -> str:
    return type(value).__name__


for _public in (Scope, MetricRecorder):
    _public.__module__ = "coglet._sdk"
