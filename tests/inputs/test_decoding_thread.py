"""Threads for large JSON: few at a time, and what they were given goes with its refusal."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest
import trio
import trio.testing

from cog_trio.inputs.decoding_thread import run_in_decoding_thread


class Refusal(Exception):
    pass


class Body:
    """Something large."""


async def test_a_refusal_holds_nothing_that_was_refused() -> None:
    """Else each refused body of 20 MB stays until the garbage collector comes."""

    def refuse(body: Body) -> None:
        try:
            raise ValueError(body)
        except ValueError:
            raise Refusal("no") from None

    async def ask() -> weakref.ref[Body]:
        body = Body()
        with pytest.raises(Refusal, match="no"):
            await run_in_decoding_thread(refuse, body, refusals=(Refusal,))
        return weakref.ref(body)

    gc.collect()
    gc.disable()
    try:
        asked = await ask()
        await trio.to_thread.run_sync(bool)  # the thread has let go of its last job
        assert asked() is None
    finally:
        gc.enable()


async def test_another_exception_keeps_its_traceback() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await run_in_decoding_thread(fail, refusals=())
    assert caught.traceback[-1].name == "fail"


async def test_one_runs_at_a_time() -> None:
    running = most = 0
    lock, go_on, first = threading.Lock(), threading.Semaphore(0), threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        first.set()
        go_on.acquire()
        with lock:
            running -= 1

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(partial(run_in_decoding_thread, work, refusals=()))
            await trio.to_thread.run_sync(first.wait)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5):
                go_on.release()
    assert most == 1
