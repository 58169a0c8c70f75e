"""What a run here and a run on another server share: the console, the signals, the exit code.

The first SIGINT, SIGTERM or SIGHUP asks for the end: whoever runs says how (``gently``), at first by cutting whatever
waits. From then on no reader is waited for. The second signal does not wait any more (``hard``). A reader of stdout
that has left counts as a first signal without a word, a full disk as one. The code of what ended us stands, whatever
the run makes of it.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Final

import msgspec
import trio

from cog_trio.cli.options import NAME
from cog_trio.cli.run.console import Console, open_console
from cog_trio.cli.run.display import FAILED, INTERRUPTED, NOBODY_READS
from cog_trio.cli.run.progress import open_progress_line
from cog_trio.cli.signals import ending_signals

CODES: Final = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGHUP: 128 + signal.SIGHUP}


def encode(value: object) -> bytes:
    """JSON (blocking); by msgspec, which copies the files inside once, unless numbers need the standard library."""
    try:
        return msgspec.json.encode(value)
    except (OverflowError, msgspec.MsgspecError):
        return json.dumps(value).encode()


class StopRequest:
    """How the run is told to end."""

    def __init__(self, console: Console) -> None:
        self.scope = trio.CancelScope()
        self.code: int | None = None  # what ended us
        self.gently: Callable[[], None] = self.scope.cancel
        self.hard: Callable[[], None] = self.scope.cancel
        self._console = console

    async def watch(self, early: Sequence[int], signals: AsyncIterable[int]) -> None:
        for number in early:
            self._obey(number)
        async for number in signals:
            self._obey(number)

    def _obey(self, number: int) -> None:
        if self.code is None:
            self.code = CODES[signal.Signals(number)]
            self._console.release()
            self._console.phase("Stopping; Ctrl-C again does not wait")
            self.gently()
        else:
            self.hard()

    async def watch_reader(self) -> None:
        await self._console.closed.wait()
        if self.code is None:
            self.code = FAILED if self._console.fault else NOBODY_READS
            self.gently()


async def run_session(
    early: Sequence[int], colour: bool, debug: bool, body: Callable[[Console, StopRequest], Awaitable[int]]
) -> int:
    """Run ``body`` with a console and signals; the exit code. An error that nobody expected is one line, unless
    ``debug`` wants to see it."""
    with trio.open_signal_receiver(*ending_signals()) as signals:
        async with open_console(open_progress_line(colour=colour)) as console:
            stop = StopRequest(console)
            code = 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop.watch, early, signals)
                nursery.start_soon(stop.watch_reader)
                with stop.scope:
                    try:
                        code = await body(console, stop)
                    except Exception as error:  # noqa: BLE001 (told below: a fault of ours, or of the system)
                        code = FAILED
                        console.say(_told(error, debug))
                    console.phase("")
                    if console.dropped and not console.closed.is_set():  # else there is nobody to be told
                        code = code or FAILED
                        console.say(f"{NAME}: output was lost, since its reader is too slow")
                    stop.gently = stop.scope.cancel  # only the reader is waited for
                    await console.flush()
                nursery.cancel_scope.cancel()
            console.phase("")
    if console.fault is not None:
        print(f"{NAME}: stdout can't be written: {console.fault}", file=sys.stderr)
    if stop.code is None and console.closed.is_set():  # by the last of what was written
        return FAILED if console.fault else NOBODY_READS
    return code if stop.code is None else stop.code


def _told(error: Exception, debug: bool) -> str:
    if debug:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    text = " ".join(str(error).split())
    return f"{NAME}: {type(error).__name__}: {text} (--debug shows where)"
