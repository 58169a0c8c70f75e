"""Cancels: where they reach, where they never do, and what they leave. A real worker; the gate's own rules alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import (
    Healthcheck,
    HealthcheckResult,
    LogLine,
    OutputChunk,
    Predict,
    PredictionId,
    SlotId,
    SlotResponse,
)
from cog_trio.worker.cancel import gate as cancel
from tests.worker.executors.test_sync_executor import CODE
from tests.worker.rig import Outcome, Parent, open_worker

PROMPT = 5.0  # seconds; what is cancelled would take 30, and the machine may be busy


async def cancel_when(parent: Parent, code: str, text: str = "go", repeats: int = 1) -> tuple[Outcome, float]:
    """Run, cancel when the text was printed; the outcome and the seconds from the cancel."""
    predict = await parent.predict({"code": code, "x": str(parent.folder)})
    frames: list[SlotResponse] = []
    await parent.wait_log(predict, text, frames)
    begin = trio.current_time()
    for _ in range(repeats):
        await parent.cancel(predict)
    outcome = await parent.finish(predict, frames)
    return outcome, trio.current_time() - begin


WAITS = (
    "time.sleep(30)",
    "[None for _ in iter(int, 1)]",
    "threading.Lock().acquire() or [lock.acquire() for lock in [threading.Lock()] for _ in range(2)]",
    "threading.Event().wait()",
    "queue.Queue().get()",
    "queue.SimpleQueue().get()",
    "subprocess.run(['sleep', '30'])",
    "os.read(os.pipe()[0], 1)",
    "socket.socketpair()[0].recv(1)",
    "asyncio.run(sleep(30))",
    "threading.Thread(target=time.sleep, args=(30,), daemon=True).run()",
)


@pytest.mark.covers("worker:W26")
async def test_W26_interrupts(tmp_path: Path) -> None:
    code = """
import asyncio, os, queue, socket, subprocess, threading, time
async def sleep(seconds):
    print("go")  # not before: a loop that is cut while it is made says more
    await asyncio.sleep(seconds)
def run():
    try:
        keep = WAIT
        time.sleep(30)
    finally:
        print("cleaned")
"""
    async with open_worker(tmp_path, CODE) as parent:
        for wait in WAITS:
            first = "" if "run(sleep" in wait else 'print("go") or '
            outcome, seconds = await cancel_when(parent, code.replace("WAIT", first + wait))
            assert outcome.cancelled, wait
            assert outcome.logs() == "go\ncleaned\n", wait
            assert seconds < PROMPT, wait
            assert (await parent.run({"code": "def run(): return 1"})).outputs == [1], wait


@pytest.mark.covers("worker:W28")
async def test_W28_a_cancel_while_a_socket_is_forgotten_is_not_lost(tmp_path: Path) -> None:
    """Its finalizer asks for its repr, which looks for signals, and drops what they raise: the hook is not told."""
    code = "import socket\ndef run():\n    print('go')\n    while True: socket.socketpair()"
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(8):
            outcome, seconds = await cancel_when(parent, code)
            assert outcome.cancelled
            assert seconds < PROMPT


async def test_between_yields_it_is_thrown_into_the_generator(tmp_path: Path) -> None:
    code = """
from cog import CancelationException
def run():
    try:
        n = 0
        print("go")
        while True:
            yield n
            n += 1
    except CancelationException:
        print("thrown")
        raise
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, seconds = await cancel_when(parent, code)
        assert outcome.cancelled
        assert outcome.outputs == [*range(len(outcome.outputs))]
        assert "thrown\n" in outcome.logs()
        assert seconds < PROMPT


@pytest.mark.covers("worker:W27")
async def test_W27_repeat_does_not_interrupt_cleanup(tmp_path: Path) -> None:
    code = """
import time
def run():
    try:
        print("go")
        time.sleep(30)
    finally:
        end = time.monotonic() + 0.5
        while time.monotonic() < end: print("cleaning")
        print("cleaned")
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "go", frames)
        await parent.cancel(predict)
        await parent.wait_log(predict, "cleaning", frames)
        for _ in range(20):
            await parent.cancel(predict)
        outcome = await parent.finish(predict, frames)
        assert outcome.cancelled
        assert outcome.logs().endswith("cleaned\n")


@pytest.mark.parametrize("end", ["return 1", "raise ValueError('x')", "import sys; sys.exit(1)"])
async def test_swallowed_or_not_it_counts_as_cancelled(tmp_path: Path, end: str) -> None:
    code = f"""
import time
def run():
    try:
        print("go")
        time.sleep(30)
    except BaseException:
        pass
    {end}
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, _ = await cancel_when(parent, code)
        assert outcome.cancelled
        assert "Traceback" not in outcome.logs()


@pytest.mark.covers("worker:W28")
async def test_W28_swallowed_by_del_it_is_delivered_again(tmp_path: Path) -> None:
    code = """
import time
class Slow:
    def __del__(self):
        print("go")
        time.sleep(30)
def run():
    slow = Slow()
    del slow
    time.sleep(30)
"""
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(20):  # at some place of the code that swallows, a signal which comes again would be lost
            outcome, seconds = await cancel_when(parent, code)
            assert outcome.cancelled
            assert seconds < PROMPT


@pytest.mark.covers("worker:W26")
@pytest.mark.parametrize("handler", ["", "signal.signal(signal.SIGALRM, lambda *_: None)"], ids=["", "beside an alarm"])
async def test_W26_beside_a_wake_up_descriptor_that_is_closed(tmp_path: Path, handler: str) -> None:
    """The interpreter tells of it on sys.stderr, within our signal handler; what the stream raises there is lost."""
    code = f"""
import os, signal, time
def run():
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    os.close(write)
    {handler}
    if signal.getsignal(signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    print("go")
    time.sleep(30)
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, seconds = await cancel_when(parent, code)
        assert outcome.cancelled
        assert seconds < PROMPT
        assert "signal wakeup fd" in outcome.logs()


@pytest.mark.parametrize(
    "deaf",
    [
        "signal.signal(gate.signal, lambda *_: None)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {gate.signal})",
    ],
)
async def test_without_the_signal_it_comes_all_the_same(tmp_path: Path, deaf: str) -> None:
    code = f"""
import signal
from cog_trio.worker.cancel.gate import gate
def run():
    {deaf}
    print("go")
    while True: pass
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, seconds = await cancel_when(parent, code)
        assert outcome.cancelled
        assert seconds < PROMPT


async def test_print_that_waits_for_room_is_left_whole(tmp_path: Path) -> None:
    """Given a run that prints more than the parent reads, when it is cancelled, then it ends, with whole frames."""
    code = """
import pathlib
def run():
    n = 0
    while True:
        print(n, "x" * 10_000)
        n += 1
        pathlib.Path(x, "count").write_text(str(n))
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code, "x": str(tmp_path)})
        count, before = trio.Path(tmp_path / "count"), -1
        with trio.fail_after(20):
            while True:  # until the count stands still: the run waits for us
                await trio.sleep(0.2)
                now = int((await count.read_text()) or 0) if await count.exists() else 0
                if now == before and now > 0:
                    break
                before = now
        assert now < 1000, "nothing held the run back"
        await parent.cancel(predict)
        outcome = await parent.finish(predict)
        assert outcome.cancelled
        lines = outcome.logs().splitlines()
        assert [line.split()[0] for line in lines] == [str(n) for n in range(len(lines))]
        assert (await parent.run({"code": "def run(): return 1"})).outputs == [1]


@pytest.mark.covers("D19")
async def test_D19_cancel_before_predict_cuts_it(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        run = parent.next_run()
        await parent.cancel(Predict(SlotId(0), PredictionId(f"id{run}"), run, ""))
        await parent.tell(Healthcheck("after"))
        await parent.hear(HealthcheckResult)  # the channels are read in no order: now the cancel has been
        predict = await parent.predict({"code": "def run(): print('began')"}, run=run)
        outcome = await parent.finish(predict)
        assert outcome.cancelled
        assert outcome.logs() == ""
        assert (await parent.run({"code": "def run(): return 1"})).outputs == [1]  # the next run is not hit
        await parent.cancel(predict)  # late: nothing
        assert (await parent.run({"code": "def run(): return 2"})).outputs == [2]


@pytest.mark.covers("worker:W25")
async def test_W25_two_hundred_cancels_at_once(tmp_path: Path) -> None:
    code = "import time\ndef run(): time.sleep(30)"
    async with open_worker(tmp_path, CODE) as parent:
        with trio.fail_after(30):
            for _ in range(200):
                predict = await parent.predict({"code": code})
                await parent.cancel(predict)
                assert (await parent.finish(predict)).cancelled
        assert (await parent.run({"code": "def run(): return 1"})).outputs == [1]


LOOPS = {
    "trio": """
import time, trio, trio.testing
async def part(name, function):
    try:
        print(name)
        await function()
    finally:
        with trio.CancelScope(shield=True): await trio.sleep(0.05)
        print(name, "cleaned")
async def main(function):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(part, "a", trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        await part("go", function)
def run():
    try: trio.run(main, FUNCTION)
    finally: print("cleaned")
""",
    "asyncio": """
import asyncio, time
async def part(name, function):
    try:
        print(name)
        await function()
    finally:
        await asyncio.sleep(0.05)
        print(name, "cleaned")
async def main(function):
    other = asyncio.create_task(part("a", asyncio.Event().wait))
    await asyncio.sleep(0)
    await part("go", function)
def run():
    try: asyncio.run(main(FUNCTION))
    finally: print("cleaned")
""",
}
BLOCK = "import time\nasync def block(): time.sleep(30)"


@pytest.mark.covers("worker:W26")
@pytest.mark.parametrize("loop", LOOPS)
async def test_W26_the_clean_up_of_tasks_runs_in_a_loop_of_the_runs_own(tmp_path: Path, loop: str) -> None:
    """Field lesson 1, worker.md: also where the cancel comes while the loop waits, and again and again."""
    waits = {"trio": "trio.sleep_forever", "asyncio": "asyncio.Event().wait"}[loop]
    async with open_worker(tmp_path, CODE) as parent:
        for code in (LOOPS[loop].replace("FUNCTION", waits), BLOCK + LOOPS[loop].replace("FUNCTION", "block")):
            outcome, seconds = await cancel_when(parent, code, repeats=20)
            assert outcome.cancelled
            said = outcome.logs().splitlines()
            assert (said[:2], said[-1]) == (["a", "go"], "cleaned")
            assert sorted(said[2:-1]) == ["a cleaned", "go cleaned"]
            assert seconds < PROMPT


HELPERS = {
    "helper task that computes": "async def main():\n    helper = asyncio.create_task(spin())\n    await idle()",
    "helper task that waits": "async def main():\n    helper = asyncio.create_task(tick())\n    await idle()",
    "callback": "async def main():\n    asyncio.get_running_loop().call_soon(block)\n    await idle()",
    "callbacks without end": "async def main():\n    again()\n    await idle()",
    "run_until_complete": "async def main():\n    helper = asyncio.create_task(tick())\n    await idle()",
    "run_forever": "",
}
IN_A_LOOP = """
import asyncio, time
async def idle():
    try: await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.02)
        print("main cleaned")
async def spin():
    print("go")
    while True: time.sleep(0.0001)
async def tick():
    print("go")
    while True: await asyncio.sleep(0.0001)
def block():
    print("go")
    while True: time.sleep(0.0001)
def again():
    asyncio.get_running_loop().call_soon(again)
    if not said: said.append(print("go"))
said = []
MAIN
def run():
    START
"""
STARTS = {
    "run_until_complete": "asyncio.new_event_loop().run_until_complete(main())",
    "run_forever": "loop = asyncio.new_event_loop(); loop.call_soon(print, 'go'); loop.run_forever()",
}


@pytest.mark.parametrize("where", HELPERS)
async def test_a_cancel_of_a_run_that_has_an_asyncio_loop_is_never_lost(tmp_path: Path, where: str) -> None:
    """Wherever it lands: asyncio keeps what a helper task raises as its result, and logs what a callback raises."""
    code = IN_A_LOOP.replace("MAIN", HELPERS[where]).replace("START", STARTS.get(where, "asyncio.run(main())"))
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(5):
            outcome, seconds = await cancel_when(parent, code)
            assert outcome.cancelled
            assert seconds < PROMPT
            assert ("main cleaned" in outcome.logs()) == (where != "run_forever")
            assert "Exception in callback" not in outcome.logs()
            assert (await parent.run({"code": "def run(): return 1"})).outputs == [1]


@pytest.mark.covers("worker:W27")
async def test_W27_deep_in_a_recursion_it_is_not_lost(tmp_path: Path) -> None:
    """worker.md: where there is no room for a frame of ours, the code gets RecursionError, and the cancel later."""
    code = """
def down():
    try: down()
    except RecursionError: spin()
def spin():
    while True: pass
def run():
    try:
        print("go")
        down()
    finally: print("cleaned")
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, _ = await cancel_when(parent, code)
        assert outcome.cancelled
        assert outcome.logs() == "go\ncleaned\n"


async def test_in_a_lock_of_our_own_nothing_is_interrupted(tmp_path: Path) -> None:
    """A storm of prints, metrics and cancels: frames stay whole and in order, each run ends cancelled."""
    code = """
import cog
def run():
    print("go")
    n = 0
    while True:
        print(n); n += 1
        cog.current_scope().record_metric("n", n)
"""
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(20):
            outcome, _ = await cancel_when(parent, code)
            assert outcome.cancelled
            numbers = [frame.data.strip() for frame in outcome.frames if isinstance(frame, LogLine)][1:]
            assert numbers == [str(n) for n in range(len(numbers))]


async def test_cancel_of_one_run_in_a_stream(tmp_path: Path) -> None:
    code = "import time\ndef run():\n    yield 1\n    print('go')\n    time.sleep(30)\n    yield 2"
    async with open_worker(tmp_path, CODE) as parent:
        outcome, _ = await cancel_when(parent, code)
        assert outcome.cancelled
        assert outcome.outputs == [1]  # outputs so far stay
        assert [frame.index for frame in outcome.frames if isinstance(frame, OutputChunk)] == [0]


# The gate itself; not installed, so no signal is taken in this process.


def test_signal_without_real_time_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cancel.choose_signal() == signal.SIGRTMIN + 3
    monkeypatch.delattr(signal, "SIGRTMIN")
    assert cancel.choose_signal() == signal.SIGUSR2


def test_gate_raises_in_user_code_once() -> None:
    class Cut(BaseException): ...

    gate = cancel.Gate()
    gate.exception = Cut
    gate.begin_run(1)
    gate.request(1)
    with pytest.raises(Cut):
        gate.user_code(1).__enter__()
    assert (gate.inside, gate.delivered) == (False, 1)
    with gate.user_code(1):
        gate.request(1)
        gate.deliver()  # the clean-up is not disturbed
    gate.end_run()
    gate.begin_run(2)
    with gate.user_code(2):
        assert gate.inside
        gate.deliver()
