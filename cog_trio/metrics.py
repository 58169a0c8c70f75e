"""How recorded metrics add up in a prediction (spec/sdk-and-schema.md 1.7). Pure functions on plain JSON.

Dots in a name nest objects; whatever else stands on the way is replaced by an object. ``null`` deletes a leaf
and leaves its parents. The type rules are the worker's, where the user gets the exception; what can't be added
here is ignored.
"""

from __future__ import annotations

from cog_trio.bridge.protocol import Json, MetricMode


def aggregate(metrics: dict[str, Json], name: str, value: Json, mode: MetricMode) -> None:
    """Apply one recorded value to the tree ``metrics``."""
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
    if _is_number(old) and _is_number(value):
        node[leaf] = old + value


def _append(node: dict[str, Json], leaf: str, value: Json) -> None:
    if leaf not in node:
        node[leaf] = [value]
    elif isinstance(node[leaf], list):
        node[leaf].append(value)
    else:
        node[leaf] = [node[leaf], value]


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
