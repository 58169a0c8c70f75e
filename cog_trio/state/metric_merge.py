"""How recorded metrics add up in a prediction. Pure functions on plain JSON.

Dots in a name nest objects; whatever else stands on the way is replaced by an object. ``null`` deletes a leaf
and leaves its parents. The type rules are the worker's, where the user gets the exception; an increment of what is
no number is ignored here.
"""

from __future__ import annotations

from typing import Final

from cog_trio.bridge.protocol import Json, MetricMode

MAX_DEPTH: Final = 200  # levels of one value; JSON readers give up between 100 and 1000
MAX_INTEGER: Final = 10**4300  # what is shorter can be written as JSON
TOO_LARGE: Final = "the sum is too large"


class Unfit(Exception):
    """The value can't be shown as JSON; nothing has changed."""


def aggregate(metrics: dict[str, Json], name: str, value: Json, mode: MetricMode) -> None:
    """Apply one recorded value to the tree ``metrics``.

    Raises:
      Unfit: if what comes out could not be written, or not be read by others.
    """
    if isinstance(value, (dict, list)) and _is_deep(value):
        raise Unfit(f"it is nested over {MAX_DEPTH} levels deep")
    *parents, leaf = name.split(".")
    node = metrics
    for segment in parents:
        child = node.get(segment)
        if not isinstance(child, dict):
            if value is None:
                return  # nothing to delete there
            child = node[segment] = {}
        node = child
    if value is None:
        node.pop(leaf, None)
    elif mode is MetricMode.INCREMENT:
        _increment(node, leaf, value)
    elif mode is MetricMode.APPEND:
        _append(node, leaf, value)
    else:
        node[leaf] = value


def _increment(node: dict[str, Json], leaf: str, value: Json) -> None:
    old = node.get(leaf, 0)
    if not (_is_number(old) and _is_number(value)):
        return
    try:
        total = old + value
    except OverflowError:  # a float has no room for an integer that is as long as JSON allows
        raise Unfit(TOO_LARGE) from None
    if not -MAX_INTEGER < total < MAX_INTEGER:
        raise Unfit(TOO_LARGE)
    node[leaf] = total


def _append(node: dict[str, Json], leaf: str, value: Json) -> None:
    if leaf not in node:
        node[leaf] = [value]
    elif isinstance(node[leaf], list):
        node[leaf].append(value)
    else:
        node[leaf] = [node[leaf], value]


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_deep(value: Json) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True
