"""The life of a prediction, rule by rule: the table, what it keeps, what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import MetricMode, logs_truncated
from cog_trio.state.bounded_text import BoundedText
from cog_trio.state.metric_merge import aggregate
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Bounds, Prediction
from cog_trio.state.status import NEXT, TERMINAL, Fact, IllegalTransition, Outcome, Status

DIAGRAM = Path(__file__).parent.parent.parent / "docs" / "design" / "prediction.md"
RETURNED = Outcome(Fact.RETURNED)
RAISED = Outcome(Fact.RAISED, "ValueError: boom")
CUT = Outcome(Fact.CUT)


def edges(page: Path) -> set[tuple[str, str, str]]:
    """The labelled edges of a page's state diagram."""
    block = page.read_text().split("```mermaid")[1].split("```")[0]
    return set(re.findall(r"^\s*(\w+) --> (\w+): (\w+)$", block, re.MULTILINE))


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def shown(prediction: Prediction, with_input: bool = False) -> dict[str, Any]:
    snapshot: dict[str, Any] = json.loads(prediction.snapshot(with_input))
    return snapshot


def clock() -> Callable[[], datetime]:
    """One second later at each look."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def now() -> datetime:
        nonlocal moment
        moment += timedelta(seconds=1)
        return moment

    return now


def put_in(prediction: Prediction, status: Status) -> None:
    if status is not Status.STARTING:
        prediction.dispatched()
    if status in TERMINAL:
        prediction.finish({Status.SUCCEEDED: RETURNED, Status.FAILED: RAISED, Status.CANCELED: CUT}[status])


def state_of(prediction: Prediction) -> tuple[Any, ...]:
    return prediction.status, prediction.error, prediction.predict_time, prediction.snapshot()


@pytest.mark.parametrize(("status", "fact"), list(product(Status, Fact)))
async def test_each_pair_of_state_and_fact(status: Status, fact: Fact) -> None:
    prediction = Prediction("p")
    put_in(prediction, status)
    before = state_of(prediction)
    step = prediction.dispatched if fact is Fact.DISPATCHED else lambda: prediction.finish(Outcome(fact, "E: x"))
    if fact in NEXT[status]:
        step()
        assert prediction.status is NEXT[status][fact]
    else:
        with pytest.raises(IllegalTransition):
            step()
        assert state_of(prediction) == before


def test_the_diagram_is_the_table() -> None:
    table = {(s.value, t.value, f.value) for s, row in NEXT.items() for f, t in row.items()}
    assert edges(DIAGRAM) == table


def test_status_spellings() -> None:
    assert [status.value for status in Status] == ["starting", "processing", "succeeded", "failed", "canceled"]


def test_terminal_states_have_no_way_out() -> None:
    assert {Status.SUCCEEDED, Status.FAILED, Status.CANCELED} == TERMINAL


@pytest.mark.covers("http:W23")
async def test_W23_times_are_fixed_at_the_terminal_step(autojump_clock: trio.testing.MockClock) -> None:
    prediction = Prediction("p", now=clock())
    await trio.sleep(1)
    prediction.dispatched()
    await trio.sleep(2)
    prediction.finish(RETURNED)
    first = shown(prediction)
    await trio.sleep(100)
    assert shown(prediction) == first
    assert first == {
        "id": "p",
        "status": "succeeded",
        "logs": "",
        "metrics": {"predict_time": 3.0},
        "created_at": "2026-01-02T03:04:06+00:00",
        "started_at": "2026-01-02T03:04:07+00:00",
        "completed_at": "2026-01-02T03:04:08+00:00",
        "output": None,
    }


async def test_a_snapshot_in_flight() -> None:
    prediction = Prediction("p", NewPrediction(input=b'{"a": 1}'), now=clock())
    assert shown(prediction) == {
        "id": "p",
        "status": "starting",
        "logs": "",
        "metrics": {},
        "created_at": "2026-01-02T03:04:06+00:00",
    }
    assert shown(prediction, with_input=True)["input"] == {"a": 1}


@pytest.mark.covers("http:W22", "worker:W39")
@pytest.mark.parametrize("outcome", [RAISED, CUT])
async def test_W22_failed_and_canceled_keep_logs_and_partial_output(outcome: Outcome) -> None:
    prediction = Prediction("p", output_is_array=True)
    prediction.dispatched()
    prediction.append_log("one\n")
    prediction.append_log("two")
    prediction.add_output(raw("a"))
    prediction.finish(outcome)
    snapshot = shown(prediction)
    assert snapshot["logs"] == "one\ntwo"
    assert snapshot["output"] == ["a"]
    assert snapshot.get("error") == outcome.error


@pytest.mark.parametrize(
    ("items", "is_array", "is_stream", "output"),
    [
        ([], False, False, None),
        ([], True, False, []),
        ([], False, True, []),
        ([1], False, False, 1),
        ([1], True, False, [1]),
        ([1], False, True, [1]),
        ([1, 2], False, False, [1, 2]),
        ([[1, 2]], False, False, [1, 2]),
        ([None], False, False, None),
    ],
)
async def test_one_value_or_many(items: list[Any], is_array: bool, is_stream: bool, output: Any) -> None:
    prediction = Prediction("p", output_is_array=is_array)
    prediction.dispatched()
    for item in items:
        prediction.add_output(raw(item))
    prediction.finish(Outcome(Fact.RETURNED, is_stream=is_stream))
    assert shown(prediction)["output"] == output
    assert prediction.output == output


@pytest.mark.covers("http:W42")
async def test_W42_scalars_stay_scalars_and_lists_lists_in_flight() -> None:
    scalar, many = Prediction("s"), Prediction("m", output_is_array=True)
    for prediction in (scalar, many):
        prediction.dispatched()
        assert "output" not in shown(prediction)
        prediction.add_output(raw("abc"))
    assert shown(scalar)["output"] == "abc"
    assert shown(many)["output"] == ["abc"]


async def test_outputs_are_spliced_as_they_came() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.add_output(msgspec.Raw(b'{"n": 1' + b"0" * 40 + b'.50, "t":"\\u00e9"}'))
    prediction.finish(RETURNED)
    assert b'{"n": 1' + b"0" * 40 + b'.50, "t":"\\u00e9"}' in prediction.snapshot()


@pytest.mark.covers("worker:W50")
async def test_W50_a_files_place_is_kept() -> None:
    prediction = Prediction("p", output_is_array=True)
    prediction.dispatched()
    prediction.add_output(raw("a"))
    index = prediction.reserve_output()
    prediction.add_output(raw("c"))
    assert (index, prediction.next_index) == (1, 3)
    assert shown(prediction)["output"] == ["a"], "what stands behind a file that is being read waits for it"
    prediction.fill_output(index, raw("b"))
    assert shown(prediction)["output"] == ["a", "b", "c"]
    with pytest.raises(IllegalTransition):
        prediction.fill_output(index, raw("again"))


async def test_at_the_end_a_place_that_was_never_filled_is_left_out() -> None:
    prediction = Prediction("p", output_is_array=True)
    prediction.dispatched()
    prediction.reserve_output()
    prediction.add_output(raw("b"))
    prediction.finish(RAISED)
    assert shown(prediction)["output"] == ["b"]


async def test_nothing_is_added_after_the_end() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.finish(RETURNED)
    before = prediction.snapshot()
    for call in (
        lambda: prediction.append_log("x"),
        lambda: prediction.add_output(raw(1)),
        lambda: prediction.fill_output(0, raw(1)),
        prediction.reserve_output,
        lambda: prediction.record_metric("m", raw(1), MetricMode.REPLACE),
    ):
        with pytest.raises(IllegalTransition):
            call()
    assert prediction.snapshot() == before


async def test_a_failure_always_has_a_text() -> None:
    prediction = Prediction("p")
    prediction.finish(Outcome(Fact.RAISED))
    assert shown(prediction)["error"]


async def test_cancel_is_right_before_the_task_starts_and_repeatable() -> None:
    prediction = Prediction("p")
    prediction.cancel()
    prediction.cancel()
    assert prediction.cancel_requested
    assert prediction.status is Status.STARTING, "only its task says canceled"
    with trio.CancelScope() as scope:
        prediction.enter(scope)
        await trio.sleep_forever()
    prediction.finish(CUT)
    prediction.cancel()
    assert shown(prediction)["status"] == "canceled"


async def test_a_cancel_reaches_the_scope_that_the_prediction_stands_in() -> None:
    """First that of the task that waits on its behalf, later that of its slot's task; between the two it is kept."""
    for cancelled_in in ("first", "between", "second"):
        prediction = Prediction("p")
        first, second = trio.CancelScope(), trio.CancelScope()
        prediction.enter(first)
        if cancelled_in == "first":
            prediction.cancel()
        assert first.cancel_called is (cancelled_in == "first")
        with first:
            pass
        if cancelled_in == "between":
            prediction.cancel()
        prediction.enter(second)
        if cancelled_in == "second":
            prediction.cancel()
        assert second.cancel_called


async def test_a_late_cancel_touches_no_scope() -> None:
    """The scope of a slot is the next run's by then."""
    prediction, scope = Prediction("p"), trio.CancelScope()
    prediction.enter(scope)
    prediction.finish(CUT)
    prediction.cancel()
    assert not scope.cancel_called


async def test_the_end_is_told_before_anybody_who_waits_goes_on() -> None:
    prediction, told = Prediction("p"), list[str]()
    prediction.on_finish(lambda ended: told.append(ended.status.value))
    prediction.finish(CUT)
    assert told == ["canceled"]
    prediction.on_finish(lambda ended: told.append("late"))
    assert told == ["canceled", "late"]


async def test_all_who_wait_are_woken_at_the_end(autojump_clock: trio.testing.MockClock) -> None:
    prediction = Prediction("p")
    woken: list[float] = []

    async def wait() -> None:
        await prediction.wait_finished()
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await trio.sleep(2)
        prediction.finish(CUT)
    assert [moment - woken[0] for moment in woken] == [0, 0, 0]
    await prediction.wait_finished()


@pytest.mark.covers("D25")
async def test_D25_logs_are_bounded_with_a_visible_mark() -> None:
    prediction = Prediction("p", bounds=Bounds(logs=10))
    prediction.dispatched()
    prediction.append_log("12345")
    prediction.append_log("67é90abc")
    prediction.append_log("more")
    assert prediction.logs == f"1234567é9\n{logs_truncated(10)}\n"
    assert prediction.dropped_logs == (1, len("0abc") + len("more"))


def test_log_text_is_cut_between_characters() -> None:
    text = BoundedText(4)
    text.append("abcé")
    assert text.text == f"abc\n{logs_truncated(4)}\n"
    assert text.dropped == 2


def test_log_text_at_its_limit_is_not_cut() -> None:
    text = BoundedText(4)
    text.append("abcd")
    assert (text.text, text.dropped) == ("abcd", 0)
    text.append("")
    assert text.dropped == 0


def test_the_mark_names_the_limit() -> None:
    assert logs_truncated(32 * 2**20) == "[**** LOGS TRUNCATED AT 32 MiB ****]"


async def test_size_counts_output_logs_and_input() -> None:
    prediction = Prediction("p", NewPrediction(input=b"123"))
    prediction.dispatched()
    prediction.add_output(raw("a"))
    prediction.append_log("éé")
    assert prediction.size == 3 + 3 + 4 + 2  # logs are in the events once more
    prediction.input = None
    assert prediction.size == 3 + 4 + 2


async def test_size_counts_what_clients_and_the_model_may_make_long() -> None:
    bare = Prediction("p")
    assert Prediction("p", NewPrediction(webhook="http://a.example/" + "x" * 983)).size == bare.size + 1000
    assert Prediction("p", NewPrediction(trace=((b"traceparent", b"x" * 89),))).size == bare.size + 100
    for prediction in (bare, other := Prediction("p")):
        prediction.dispatched()
    other.record_metric("m", raw("x" * 1000), MetricMode.REPLACE)
    assert other.size >= bare.size + 1000
    before = other.size
    other.finish(Outcome(Fact.RAISED, "x" * 1000))
    assert other.size >= before + 1000


async def test_metrics_predict_time_wins() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.record_metric("predict_time", raw(99), MetricMode.REPLACE)
    prediction.record_metric("a.b", raw(2), MetricMode.INCREMENT)
    prediction.finish(RETURNED)
    metrics = shown(prediction)["metrics"]
    assert metrics["a"] == {"b": 2}
    assert metrics["predict_time"] == prediction.predict_time != 99


R, N, A = MetricMode.REPLACE, MetricMode.INCREMENT, MetricMode.APPEND


def test_metric_modes_on_the_wire() -> None:
    assert [mode.value for mode in MetricMode] == ["replace", "increment", "append"]


@pytest.mark.parametrize(
    ("records", "result"),
    [
        ([("a", 1, R), ("a", 2, R)], {"a": 2}),
        ([("a", 1, N), ("a", 2, N)], {"a": 3}),
        ([("a", 1, N), ("a", 0.5, N)], {"a": 1.5}),
        ([("a", 2**80, N), ("a", 1, N)], {"a": 2**80 + 1}),
        ([("a", "x", R), ("a", 1, N)], {"a": "x"}),
        ([("a", True, R), ("a", 1, N)], {"a": True}),
        ([("a", 1, A), ("a", "x", A)], {"a": [1, "x"]}),
        ([("a", 1, R), ("a", 2, A)], {"a": [1, 2]}),
        ([("a", [1], R), ("a", 2, A)], {"a": [1, 2]}),
        ([("a", {"b": 1}, R), ("a", 2, A)], {"a": [{"b": 1}, 2]}),
        ([("a.b.c", 1, R), ("a.b.d", 2, R)], {"a": {"b": {"c": 1, "d": 2}}}),
        ([("a", 1, R), ("a.b", 2, R)], {"a": {"b": 2}}),
        ([("a.b", 1, R), ("a", 2, R)], {"a": 2}),
        ([("a", 1, R), ("a", None, R)], {}),
        ([("a.b", 1, R), ("a.b", None, R)], {"a": {}}),
        ([("a", 1, R), ("a.b", None, R)], {"a": 1}),
        ([("a", None, R)], {}),
        ([("a.b", None, R)], {}),
        ([("a.b", 1, A), ("a.b", 2, A)], {"a": {"b": [1, 2]}}),
        ([("a", 1, R), ("a", None, A), ("a", 5, N)], {"a": 5}),
    ],
)
def test_metrics_add_up(records: list[tuple[str, Any, MetricMode]], result: dict[str, Any]) -> None:
    metrics: dict[str, Any] = {}
    for name, value, mode in records:
        aggregate(metrics, name, value, mode)
    assert metrics == result


async def test_big_integers_in_metrics_are_exact() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.record_metric("n", msgspec.Raw(b"1" + b"0" * 60), MetricMode.REPLACE)
    assert b'"n":1' + b"0" * 60 + b"}" in prediction.snapshot()


@pytest.mark.parametrize("first", ["1" + "0" * 400, "-1" + "0" * 400])
async def test_a_sum_of_a_long_integer_and_a_float_is_told_in_the_logs(first: str) -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.record_metric("a", msgspec.Raw(first.encode()), MetricMode.REPLACE)
    prediction.record_metric("a", raw(0.5), MetricMode.INCREMENT)
    prediction.record_metric("b", raw(1e308), MetricMode.INCREMENT)
    prediction.record_metric("b", raw(1e308), MetricMode.INCREMENT)
    shows = shown(prediction)
    assert "[cog_trio] the metric a was dropped: the sum is too large" in shows["logs"]
    assert "[cog_trio] the metric b was dropped: the sum is too large" in shows["logs"]
    assert shows["metrics"] == {"a": int(first), "b": 1e308}


@pytest.mark.parametrize(
    "value",
    [b"[" * 201 + b"]" * 201, b"[" * 5000 + b"]" * 5000, b'{"a":' * 300 + b"1" + b"}" * 300, b"9" * 4301, b"1e999"],
)
async def test_a_metric_that_json_cant_carry_is_told_in_the_logs(value: bytes) -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.record_metric("kept", raw(1), MetricMode.REPLACE)
    prediction.record_metric("a.b", msgspec.Raw(value), MetricMode.REPLACE)
    assert "[cog_trio] the metric a.b was dropped: " in shown(prediction)["logs"]
    assert shown(prediction)["metrics"] == {"kept": 1}


async def test_a_sum_that_is_too_long_to_write_is_told_in_the_logs() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    for _ in range(2):
        prediction.record_metric("n", msgspec.Raw(b"9" * 4300), MetricMode.INCREMENT)
    assert shown(prediction)["metrics"] == {"n": int("9" * 4300)}
    assert "too large" in prediction.logs


async def test_a_value_of_200_levels_is_kept() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.record_metric("m", msgspec.Raw(b"[" * 200 + b"]" * 200), MetricMode.REPLACE)
    assert b"[" * 200 in prediction.snapshot()


async def test_nothing_that_changes_it_has_a_checkpoint() -> None:
    prediction = Prediction("p")
    with trio.testing.assert_no_checkpoints():
        prediction.dispatched()
        prediction.append_log("x")
        prediction.add_output(raw(1))
        prediction.record_metric("m", raw(1), MetricMode.REPLACE)
        prediction.cancel()
        prediction.finish(CUT)
        prediction.snapshot()


async def test_forgotten_outputs_are_null_and_take_no_memory() -> None:
    prediction = Prediction("a", output_is_array=True)
    prediction.dispatched()
    for number in range(20):
        prediction.add_output(msgspec.Raw(b'"%d%b"' % (number, b"x" * 100)))
    size = prediction.output_size
    prediction.forget_outputs(0, 18)
    assert prediction.output_size < size / 5
    prediction.finish(Outcome(Fact.RETURNED))
    assert prediction.next_index == 20
    assert prediction.output[:18] == [None] * 18
    assert prediction.output[18].startswith("18x")


async def test_outputs_that_come_together_are_as_if_they_came_one_by_one() -> None:
    for reserved in (False, True):
        one, many = Prediction("p"), Prediction("p")
        items = [raw("x" * size) for size in range(50)]
        for prediction in (one, many):
            prediction.dispatched()
            if reserved:
                prediction.reserve_output()
        for item in items:
            one.add_output(item)
        many.add_outputs(items)
        for prediction in (one, many):
            assert prediction.next_index == 50 + reserved
            if reserved:
                prediction.fill_output(0, raw("file"))
            prediction.finish(RETURNED)
        assert (one.output, one.size) == (many.output, many.size)
        with pytest.raises(IllegalTransition):
            many.add_outputs(items)
