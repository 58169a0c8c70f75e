"""The console keeps the order of what is printed, waits for no reader for ever, and has a line that moves."""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from cog_trio.cli.run import console, progress
from cog_trio.cli.run.console import Console, open_console
from cog_trio.cli.run.session import StopRequest, run_session
from cog_trio.cli.stream_writer import THREAD_NAME


class Seen:
    """A bar that notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.shown = False
        self._called = trio.lowlevel.ParkingLot()

    async def until(self, *calls: str) -> None:
        """Wait until so much was asked, and see that it was just this."""
        while len(self.calls) < len(calls):
            await self._called.park()
        assert self.calls == list(calls)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self._called.unpark_all()

    def phase(self, text: str) -> None:
        self._note(f"phase {text}")

    def amount(self, fetched: tuple[int, int | None] | None, text: str) -> None:
        """Not looked at here."""

    def draw(self) -> None:
        if not self.shown:
            self._note("draw")
        self.shown = True

    def hide(self) -> None:
        if self.shown:
            self._note("hide")
        self.shown = False


@contextmanager
def pipes(monkeypatch: pytest.MonkeyPatch, **streams: str) -> Iterator[dict[str, int]]:
    """Pipes in place of stdout and stderr; their read ends."""
    ends = {name: os.pipe() for name in ("OUT", "ERR")}
    for name, (_, write) in ends.items():
        monkeypatch.setattr(console, name, write)
    try:
        yield {name: read for name, (read, _) in ends.items()}
    finally:
        for read, _ in ends.values():
            try:
                os.close(read)
            except OSError:
                assert streams.get("closed"), "closed by nobody"
        # A closed descriptor's number is used again: a writer that outlived its test would fill the next one's pipe.
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
                thread.join(30)
                assert not thread.is_alive(), "nobody can read, so the writer has nothing to wait for"
        for _, write in ends.values():
            os.close(write)


async def test_text_is_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipes(monkeypatch) as ends:
        async with open_console(None) as out:
            for number in range(3):
                out.err(f"log {number}\n")
                out.out(b"%d" % number)
            out.say("done")
        assert os.read(ends["OUT"], 100) == b"012"
        assert os.read(ends["ERR"], 100) == b"log 0\nlog 1\nlog 2\ndone\n"


async def test_the_line_comes_after_a_silence_and_goes_before_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never stands where a line of the model is not finished."""
    with pipes(monkeypatch), trio.fail_after(30):
        seen = Seen()
        async with open_console(seen) as out:
            out.phase("Running")
            await seen.until("phase Running", "draw")
            out.err("half a")
            await seen.until("phase Running", "draw", "hide")
            await trio.sleep(3 * console.TICK)  # in which it would be drawn
            out.err(" line\n")
            await seen.until("phase Running", "draw", "hide", "draw")
        assert not seen.shown


async def test_a_reader_that_has_left_is_told_once_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipes(monkeypatch, closed="yes") as ends:
        os.close(ends["OUT"])
        async with open_console(None) as out:
            out.out(b"x")
            with trio.fail_after(10):
                await out.closed.wait()
            for _ in range(100):
                out.out(b"x" * 2**20)
            with trio.fail_after(10):
                await out.room()
            out.say("still here")
        assert os.read(ends["ERR"], 100) == b"still here\n"


@pytest.mark.parametrize("body_waits", [True, False])
async def test_a_full_disk_is_told_and_a_failure(
    body_waits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the last of what was written found it, after all was well."""

    async def body(out: Console, stop: StopRequest) -> int:
        out.out(b"x")
        if body_waits:
            await trio.sleep_forever()
        return 0

    with Path("/dev/full").open("wb") as full:  # noqa: ASYNC230 (a device that does not block)
        monkeypatch.setattr(console, "OUT", full.fileno())
        with trio.fail_after(10):
            assert await run_session([], False, False, body) == 1
    assert capsys.readouterr().err == "cog-trio: stdout can't be written: No space left on device\n"


async def test_whoever_produces_waits_for_a_reader_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it arrives, however late, and little of it waits in memory."""
    data = os.urandom(2**18)
    with pipes(monkeypatch) as ends, trio.fail_after(60):
        async with open_console(None) as out, trio.open_nursery() as nursery:
            most = 0
            produced = trio.Event()

            async def produce() -> None:
                nonlocal most
                for _ in range(32):
                    out.out(data)
                    await out.room()
                    most = max(most, out.writer.waiting)
                produced.set()
                await out.flush()

            async def read() -> None:
                while True:
                    got.append(await trio.to_thread.run_sync(os.read, ends["OUT"], 2**16))
                    if sum(map(len, got)) == 32 * len(data):
                        return

            got: list[bytes] = []
            nursery.start_soon(produce)
            with trio.move_on_after(0.1):
                await produced.wait()
            assert not produced.is_set(), "nobody has read yet"
            nursery.start_soon(read)
        assert b"".join(got) == 32 * data
        assert most <= console.ROOM


async def test_a_stop_waits_for_no_reader_and_text_that_is_lost_is_told(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(console, "BOUND", 2**20)
    with pipes(monkeypatch):
        start = trio.current_time()
        async with open_console(None) as out:
            for _ in range(4):
                out.err("x" * 2**20)
            assert out.dropped == 2 * 2**20
            out.release()
            await out.room()
            await out.flush()
        assert trio.current_time() - start == pytest.approx(console.LAST_WORDS)


async def test_lost_text_makes_a_run_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body(out: Console, stop: StopRequest) -> int:
        out.dropped += 1
        return 0

    with pipes(monkeypatch) as ends:
        assert await run_session([], False, False, body) == 1
        assert os.read(ends["ERR"], 1000) == b"cog-trio: output was lost, since its reader is too slow\n"


def test_without_rich_each_thing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def no_rich(name: str, *rest: Any) -> Any:
        if name.startswith("rich"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(builtins, "__import__", no_rich)
    made = progress.open_progress_line(colour=True)
    assert isinstance(made, progress.PlainProgressLine)
    made.phase("Setting up")
    for fetched in (None, (5, 10), (6, 10)):
        made.amount(fetched, console.FETCHING)
        made.draw()
        made.draw()
    assert capsys.readouterr().err == "Setting up …\nFetching the inputs …\n"


def test_only_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert progress.open_progress_line(colour=True) is None
