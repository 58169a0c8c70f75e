"""Scope and metrics: names, values, type locks, inertness."""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import cog_trio.sdk as cog
from cog_trio.sdk.legacy.server.scope import evolve_scope
from cog_trio.sdk.legacy.server.scope import scope as ambient
from cog_trio.sdk.scope import Mode, Scope, enter, leave, set_fallback


@pytest.fixture
def book() -> list[tuple[str, Any, Mode]]:
    return []


@pytest.fixture
def scope(book: list[tuple[str, Any, Mode]]) -> Iterator[Scope]:
    found = Scope(context={"a": "b"}, record=lambda name, value, mode: book.append((name, value, mode)))
    token = enter(found)
    yield found
    leave(token)
    found.close()


def test_current_scope_is_found_by_context(scope: Scope, book: list[Any]) -> None:
    assert cog.current_scope() is scope
    assert cog.BaseRunner().scope is scope
    assert scope.context == {"a": "b"}
    cog.BaseRunner().record_metric("x", 1)
    scope.metrics["y.z"] = [1, None]
    scope.record_metric("n", 1.5, mode="incr")
    scope.record_metric("n", 1, mode="increment")
    scope.record_metric("l", "a", mode="append")
    assert book == [
        ("x", 1, "replace"),
        ("y.z", [1, None], "replace"),
        ("n", 1.5, "increment"),
        ("n", 1, "increment"),
        ("l", "a", "append"),
    ]


@pytest.mark.covers("worker:W59")
def test_W59_none_deletes(scope: Scope, book: list[Any]) -> None:
    scope.record_metric("x", 1)
    scope.record_metric("x", None)
    scope.metrics["x"] = "another kind is fine after that"
    scope.metrics["x"] = None
    del scope.metrics["x"]
    scope.metrics.delete("predict_time")
    scope.metrics.delete("cog.x")
    assert [entry[:2] for entry in book if entry[1] is None] == [
        ("x", None),
        ("x", None),
        ("x", None),
        ("predict_time", None),
        ("cog.x", None),
    ]


def test_deleting_an_object_frees_what_is_in_it(scope: Scope, book: list[Any]) -> None:
    scope.metrics["a.b"] = 1
    with pytest.raises(TypeError, match="without deleting first"):
        scope.metrics["a.b"] = "text"
    del scope.metrics["a"]
    scope.metrics["a.b"] = "text"
    assert [entry[:2] for entry in book] == [("a.b", 1), ("a", None), ("a.b", "text")]


@pytest.mark.covers("worker:W60", "D15")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], {"a": math.inf}])
def test_W60_numbers_that_json_lacks(value: Any, scope: Scope, book: list[Any]) -> None:
    with pytest.raises(ValueError, match="not a number that JSON knows"):
        scope.record_metric("x", value)
    assert book == []


@pytest.mark.covers("worker:W61")
def test_W61_append_and_mixed_numbers(scope: Scope) -> None:
    scope.record_metric("n", 1)
    scope.record_metric("n", 1.5, mode="incr")
    scope.record_metric("n", 2.5)
    scope.record_metric("l", "first")
    scope.record_metric("l", 2, mode="append")
    scope.record_metric("l", {"a": 1}, mode="append")
    with pytest.raises(TypeError, match="without deleting first"):
        scope.record_metric("l", 3)


@pytest.mark.parametrize(
    ("first", "second"), [(1, "a"), (True, 1), (1, True), ("a", 1.0), ([1], {"a": 1}), ({"a": 1}, [1])]
)
def test_type_lock(first: Any, second: Any, scope: Scope) -> None:
    scope.metrics["x"] = first
    with pytest.raises(TypeError, match="without deleting first"):
        scope.metrics["x"] = second
    del scope.metrics["x"]
    scope.metrics["x"] = second


@pytest.mark.parametrize("value", [object(), b"a", (1,), {1: 2}, [(1,)], {"a": object()}, {1, 2}])
def test_values_that_are_refused(value: Any, scope: Scope) -> None:
    with pytest.raises(TypeError):
        scope.metrics["x"] = value


@pytest.mark.parametrize("value", [True, "a", [1]])
def test_increments_are_numbers(value: Any, scope: Scope) -> None:
    with pytest.raises(TypeError, match="incremented"):
        scope.record_metric("x", value, mode="incr")


def test_what_is_recorded_is_a_copy(scope: Scope, book: list[Any]) -> None:
    value = {"a": [1]}
    scope.metrics["x"] = value
    value["a"].append(2)
    assert book[0][1] == {"a": [1]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("predict_time", "predict_time"),
        ("cog.x", "cog."),
        ("", "empty"),
        ("a" * 129, "128 characters"),
        ("a.b.c.d.e", "at most 4 dot-separated segments"),
        (".a", "must not start with a dot"),
        ("a.", "end with a dot"),
        ("a..b", "empty segments"),
        ("1a", "must start with a letter"),
        ("_a", "must start with a letter"),
        ("é", "must start with a letter"),
        ("a.2", "must start with a letter"),
        ("a__b", "must not contain consecutive underscores"),
        ("a-b", "only ASCII letters"),
        ("a_", "must end with a letter or digit"),
    ],
)
def test_names_that_are_refused(name: str, text: str, scope: Scope) -> None:
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        scope.metrics[name] = 1


@pytest.mark.parametrize("name", ["a", "A1_b2", "cog", "predict_time.x", "status", "a.b.c.d", "a" * 128])
def test_names_that_are_legal(name: str, scope: Scope, book: list[Any]) -> None:
    scope.metrics[name] = 1
    assert book == [(name, 1, "replace")]


@pytest.mark.covers("worker:W62")
def test_W62_the_limit_counts_characters(scope: Scope) -> None:
    with pytest.raises(ValueError, match="must start with a letter"):
        scope.metrics["é" * 100] = 1  # 200 bytes: refused for what it is, not for its length


@pytest.mark.parametrize("mode", ["add", "", 1, "REPLACE"])
def test_unknown_modes_also_outside_of_a_prediction(mode: Any, scope: Scope) -> None:
    for each in (scope, Scope()):
        with pytest.raises(TypeError, match="'replace', 'incr'"):
            each.record_metric("x", 1, mode)


def test_outside_everything_else_is_ignored() -> None:
    scope = cog.current_scope()
    scope.record_metric("!!", object())
    scope.metrics["..."] = object()
    del scope.metrics["nothing"]
    assert scope.context == {}


def test_a_finished_prediction_is_inert(scope: Scope, book: list[Any]) -> None:
    metrics = scope.metrics
    scope.close()
    metrics["x"] = 1
    scope.record_metric("!!", object())
    assert book == []


def test_metrics_are_write_only_and_scopes_closed(scope: Scope) -> None:
    metrics: Any = scope.metrics
    for read in (lambda: metrics["x"], lambda: len(metrics), lambda: "x" in metrics):
        with pytest.raises(TypeError):
            read()
    with pytest.raises(AttributeError):
        scope.other = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        scope.context = {}  # type: ignore[misc]


@pytest.mark.covers("worker:W58")
def test_W58_threads_without_context_get_what_the_worker_says(scope: Scope) -> None:
    found: list[Scope] = []

    def look() -> None:
        contextvars.Context().run(lambda: found.append(cog.current_scope()))

    def on_a_thread() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    on_a_thread()
    set_fallback(lambda: scope)
    try:
        on_a_thread()
    finally:
        set_fallback(None)
    assert found[0] is not scope
    assert found[1] is scope


def test_what_record_raises_the_user_sees_and_the_type_is_not_locked() -> None:
    def record(name: str, value: Any, mode: Mode) -> None:
        if value == "too large":
            raise ValueError("too large")

    scope = Scope(record=record)
    with pytest.raises(ValueError, match="too large"):
        scope.metrics["x"] = "too large"
    scope.metrics["x"] = 1


def test_older_scopes(scope: Scope, book: list[Any]) -> None:
    old: list[Any] = []
    with evolve_scope(context={"c": "d"}):
        assert cog.current_scope().context == {"c": "d"}
        cog.current_scope().record_metric("x", 1)
    with ambient(Scope(record_metric=lambda name, value: old.append((name, value)))):
        cog.current_scope().record_metric("y", 2)
    assert cog.current_scope() is scope
    assert book == [("x", 1, "replace")]
    assert old == [("y", 2)]
