"""``contain``: what it lets pass, what it ends, and what it tells."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from cog_trio.state.internal_errors import INTERNAL_ERROR, Where, contain, counts

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup, ExceptionGroup


def endless() -> None:
    endless()


def out_of_memory() -> None:
    raise MemoryError


def a_group() -> None:
    raise ExceptionGroup("two", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])


def an_import() -> None:
    raise ImportError("no module")


@pytest.mark.parametrize("fault", [endless, out_of_memory, a_group, an_import])
def test_an_exception_is_logged_counted_and_fails_one_thing(
    fault: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    texts: list[str] = []
    before = counts[Where.RUN]
    with contain(Where.RUN, texts.append, id="p1") as unit:
        fault()
    assert unit.failed
    assert texts == [INTERNAL_ERROR]
    assert counts[Where.RUN] == before + 1
    (record,) = caplog.records
    assert (record.levelno, record.name, record.__dict__["id"]) == (logging.ERROR, "cog_trio.internal", "p1")
    assert record.exc_info is not None


def test_nothing_happens_without_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    before = counts.copy()
    with contain(Where.RUN, lambda text: pytest.fail(text)) as unit:
        pass
    assert not unit.failed
    assert (counts, caplog.records) == (before, [])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind), contain(Where.RUN, lambda text: pytest.fail(text)):
        raise kind


async def test_a_cancellation_passes() -> None:
    with trio.CancelScope() as scope:
        with contain(Where.RUN, lambda text: pytest.fail(text)):
            scope.cancel()
            await trio.lowlevel.checkpoint()
        pytest.fail("it went on after its cancellation")
    assert scope.cancelled_caught


async def test_of_a_mixed_group_the_cancellation_passes_and_the_rest_is_contained() -> None:
    texts: list[str] = []

    async def break_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("late")

    with trio.CancelScope() as outer:
        with contain(Where.RUN, texts.append):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(break_when_cancelled)
                nursery.start_soon(trio.sleep_forever)
                await trio.testing.wait_all_tasks_blocked()
                outer.cancel()
        pytest.fail("it went on after its cancellation")
    assert outer.cancelled_caught
    assert texts == [INTERNAL_ERROR]


def test_of_a_mixed_group_what_is_no_exception_passes() -> None:
    with pytest.raises(BaseExceptionGroup) as raised, contain(Where.RUN) as unit:
        raise BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()])
    assert unit.failed
    assert [type(error) for error in raised.value.exceptions] == [KeyboardInterrupt]


def test_an_error_of_fail_leaves_and_the_fault_is_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError), contain(Where.RUN, fail):
        raise ValueError
    assert len(caplog.records) == 1
