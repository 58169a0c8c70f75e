"""`batch` under both kinds of event loops: who is in which batch, cancels, errors, limits."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio import batch
from cog_trio.sdk import batching


def by_ten(items: list[Any]) -> list[Any]:
    return [item * 10 for item in items]


class Calls:
    """A helper that notes what it gets; ``answer`` makes the results."""

    def __init__(self, answer: Callable[[list[Any]], Any] = by_ten) -> None:
        self.seen: list[list[Any]] = []
        self.threads: set[int] = set()
        self.answer = answer

    @batch(max_size=3, max_wait=0.01)
    def plain(self, items: list[Any]) -> Any:
        self.seen.append(items)
        self.threads.add(threading.get_ident())
        return self.answer(items)

    @batch(max_size=3, max_wait=0.01)
    async def awaited(self, items: list[Any]) -> Any:
        self.seen.append(items)
        return self.answer(items)


class Host:
    """A worker's part, without its logs."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery

    def share(self, contexts: list[Context]) -> Context:
        return contexts[0].copy()

    def end_share(self, context: Context) -> None:
        """Nothing was kept."""

    def start_trio_task(self, function: Callable[[], Awaitable[None]]) -> None:
        self.nursery.start_soon(function)


@pytest.fixture
def hosted(nursery: trio.Nursery) -> Iterator[None]:
    batching.set_host(Host(nursery))
    yield
    batching.set_host(None)


async def gather(function: Callable[[Any], Awaitable[Any]], items: list[Any]) -> list[Any]:
    """Results or errors of all, each awaited in a task of its own, in trio."""
    results: list[Any] = [None] * len(items)

    async def one(number: int, item: Any) -> None:
        try:
            results[number] = await function(item)
        except Exception as error:  # noqa: BLE001  it is what the test looks at
            results[number] = error

    async with trio.open_nursery() as nursery:
        for number, item in enumerate(items):
            nursery.start_soon(one, number, item)
            await trio.testing.wait_all_tasks_blocked()
    return results


@pytest.mark.parametrize("name", ["plain", "awaited"])
async def test_items_share_calls_in_the_order_in_which_they_came(hosted: None, name: str) -> None:
    calls = Calls()
    with trio.fail_after(20):
        assert await gather(getattr(calls, name), list(range(7))) == [item * 10 for item in range(7)]
    assert [item for items in calls.seen for item in items] == list(range(7))
    assert max(map(len, calls.seen)) == 3
    assert len(calls.threads) <= 1


def test_items_share_calls_under_asyncio() -> None:
    async def main(name: str) -> Calls:
        calls = Calls()
        function = getattr(calls, name)
        async with asyncio.timeout(20) if hasattr(asyncio, "timeout") else _nothing():
            assert await asyncio.gather(*map(function, range(7))) == [item * 10 for item in range(7)]
        return calls

    for name in ("plain", "awaited"):
        calls = asyncio.run(main(name))
        assert [item for items in calls.seen for item in items] == list(range(7))
        assert list(map(len, calls.seen))[:2] == [3, 3]


class _nothing:
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...


async def test_one_item_leaves_after_its_wait(hosted: None, autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    before = trio.current_time()
    assert await calls.awaited(5) == 50
    assert trio.current_time() - before == pytest.approx(0.01)
    assert calls.seen == [[5]]


async def test_a_batch_that_is_full_does_not_wait(hosted: None, autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    before = trio.current_time()
    assert await gather(calls.awaited, [1, 2, 3]) == [10, 20, 30]
    assert trio.current_time() == before


async def test_while_one_batch_is_worked_at_the_next_one_fills(
    hosted: None, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    seen: list[list[int]] = []

    class Slow:
        @batch(max_size=4, max_wait=0.01)
        async def work(self, items: list[int]) -> list[int]:
            seen.append(items)
            await trio.sleep(1)
            return items

    slow = Slow()
    nursery.start_soon(slow.work, 0)
    await trio.sleep(0.1)
    for item in range(1, 4):
        nursery.start_soon(slow.work, item)
        await trio.sleep(0.1)
    await trio.sleep(0.65)
    assert seen == [[0], [1, 2, 3]]


@pytest.mark.parametrize("name", ["plain", "awaited"])
async def test_an_exception_in_the_list_fails_that_item_alone(hosted: None, name: str) -> None:
    calls = Calls(lambda items: [ValueError(f"bad {item}") if item == 2 else item for item in items])
    results = await gather(getattr(calls, name), [1, 2, 3])
    assert (results[0], results[2]) == (1, 3)
    assert repr(results[1]) == "ValueError('bad 2')"


def stop(items: list[Any]) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize("name", ["plain", "awaited"])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda items: 1 / 0, "division by zero"),
        (lambda items: None, "{} was called with 3 items and returned NoneType: it must return a list with one"),
        (lambda items: items[1:], "{} was called with 3 items and returned 2 results: it must return a list with one"),
        (stop, "{} ended with SystemExit"),
    ],
)
async def test_a_failure_of_the_call_fails_all_items(
    hosted: None, name: str, answer: Callable[[list[Any]], Any], text: str
) -> None:
    calls = Calls(answer)
    results = await gather(getattr(calls, name), [1, 2, 3])
    assert all(str(result).startswith(text.format(name)) for result in results), results
    calls.answer = lambda items: items
    assert await getattr(calls, name)(4) == 4


async def test_a_cancelled_item_is_left_out_of_a_batch_that_has_not_begun(
    hosted: None, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    calls = Calls()
    scope = trio.CancelScope()

    async def cancelled() -> None:
        with scope:
            await calls.awaited("gone")

    nursery.start_soon(cancelled)
    nursery.start_soon(calls.awaited, "here")
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
    await trio.sleep(1)
    assert calls.seen == [["here"]]


async def test_a_batch_goes_on_for_those_that_are_left_and_ends_with_the_last(
    hosted: None, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ends: list[str] = []

    class Slow:
        @batch(max_size=2)
        async def work(self, items: list[int]) -> list[int]:
            try:
                await trio.sleep(10)
                ends.append("finished")
            except trio.Cancelled:
                ends.append("cancelled")
                raise
            return items

    slow = Slow()

    async def wait(item: int, scope: trio.CancelScope) -> None:
        with scope:
            await slow.work(item)

    for rounds in (1, 2):
        scopes = [trio.CancelScope(), trio.CancelScope()]
        for item, scope in enumerate(scopes):
            nursery.start_soon(wait, item, scope)
        await trio.sleep(1)
        for scope in scopes[:rounds]:
            scope.cancel()
        await trio.sleep(1)
        assert ends == ([], ["finished", "cancelled"])[rounds - 1]
        await trio.sleep(20)
    assert await_works(slow)


def await_works(slow: Any) -> bool:
    """No batch is left that the next one would wait for."""
    return not slow.work._working


def test_a_cancelled_item_under_asyncio() -> None:
    async def main() -> list[str]:
        ends: list[str] = []

        class Slow:
            @batch(max_size=2)
            async def work(self, items: list[int]) -> list[int]:
                try:
                    await asyncio.sleep(0.05 if items[0] else 20)
                    ends.append("finished")
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise
                return items

        slow = Slow()
        tasks = [asyncio.ensure_future(slow.work(item)) for item in (0, 0)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks = [asyncio.ensure_future(slow.work(item)) for item in (1, 1)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        assert await tasks[1] == 1
        return ends

    assert asyncio.run(main()) == ["cancelled", "finished"]


def test_a_line_outlives_its_loop() -> None:
    calls = Calls()

    async def leave() -> None:
        task = asyncio.ensure_future(calls.awaited(1))
        await asyncio.sleep(0)
        del task

    for _ in range(3):
        asyncio.run(leave())
        assert asyncio.run(calls.awaited(2)) == 20
    assert trio.run(partial(calls.plain, 3)) == 30


def test_instances_and_functions_have_lines_of_their_own() -> None:
    seen: list[list[int]] = []

    @batch
    def double(items: list[int]) -> list[int]:
        seen.append(items)
        return [2 * item for item in items]

    async def main() -> None:
        one, two = Calls(), Calls()
        assert [*await asyncio.gather(one.plain(1), two.plain(2), double(3))] == [10, 20, 6]
        assert (one.seen, two.seen, seen) == ([[1]], [[2]], [[3]])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_size": 0}, "at least 1"),
        ({"max_size": True}, "takes an int"),
        ({"max_size": 1.5}, "takes an int"),
        ({"max_wait": -1}, "0 or more seconds"),
        ({"max_wait": float("inf")}, "0 or more seconds"),
        ({"max_wait": float("nan")}, "0 or more seconds"),
        ({"max_wait": "1"}, "takes seconds"),
    ],
)
def test_limits_that_make_no_sense(limits: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        batch(**limits)


def test_what_can_not_be_a_helper() -> None:
    async def stream(items: list[int]) -> Any:
        yield items

    targets: list[Any] = [stream, Calls, 3]
    for target in targets:
        with pytest.raises(TypeError, match="takes a list and returns a list"):
            batch(target)

    class Slots:
        __slots__ = ()

        @batch
        def work(self, items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match="__slots__"):
        Slots().work  # noqa: B018


async def test_an_async_helper_of_a_trio_model_says_what_it_needs() -> None:
    with pytest.raises(RuntimeError, match="needs a worker"):
        await Calls().awaited(1)


def test_a_batch_method_looks_like_its_function() -> None:
    assert Calls.plain.__name__ == "plain"
    assert batching.batch.__doc__ is not None


class _Base:
    @batch(max_wait=0)
    async def double(self, items: list[int]) -> list[int]:
        return [item * 2 for item in items]


class _Derived(_Base):
    @batch(max_wait=0)
    async def double(self, items: list[int]) -> list[int]:
        return [await super(_Derived, self).double(item) + 1 for item in items]


def test_a_helper_may_call_the_one_that_it_overrides() -> None:
    async def main() -> int:
        found: int = await asyncio.wait_for(_Derived().double(1), 10)
        return found

    assert asyncio.run(main()) == 3


def test_the_traceback_of_a_failed_batch_is_as_short_for_the_last_item_as_for_the_first() -> None:
    class Model:
        @batch(max_size=8)
        async def fail(self, items: list[int]) -> list[int]:
            raise LookupError("gone")

    async def depth(model: Model, item: int) -> int:
        try:
            await model.fail(item)
        except LookupError as error:
            return len(traceback.extract_tb(error.__traceback__))
        return 0

    async def main() -> list[int]:
        model = Model()
        return await asyncio.gather(*(depth(model, item) for item in range(8)))

    depths = asyncio.run(main())
    assert depths[0] > 1
    assert len(set(depths)) == 1
