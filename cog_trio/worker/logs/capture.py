"""Everything the worker's user code prints, and whose it is.

Python streams are replaced before user code is imported; descriptors 1 and 2 are pipes. Text with a known owner,
by the ContextVar ``record.current`` which threads, pools and tasks carry, goes to that run's record. Text without
one (descriptors, threads born in C or in setup) goes to the only active run where the worker has one slot,
else to the service log, as does all text outside of runs.

The order between Python text and descriptor text is kept: whatever sends text of a Python stream, the end of a line
or a flush, looks first whether the pipes hold something (one ``epoll_wait``, 0.2 µs). ``detach`` empties the pipes
before the record is closed, so a run's log is whole before its terminal frame.

In a forked child nothing of the parent's may be touched: the streams write to descriptors 1 and 2, all writers
refuse, and private descriptors become the null device, not closed, so that their numbers can't become something
else's while objects of the parent still name them.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from cog_trio.bridge.protocol import LogSource
from cog_trio.sdk.scope import current_variable
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken, abandon_all
from cog_trio.worker.logs import c_stdout
from cog_trio.worker.logs.pipes import CapturePipes
from cog_trio.worker.logs.run_log import RunLog, ServiceLog, TextLog, current
from cog_trio.worker.logs.stdio import PlainRouter, RoutedStream, open_plain
from cog_trio.worker.logs.thread_context import carry
from cog_trio.worker.model.tracebacks import last_line

LAST_WORDS: Final = 5.0  # seconds that the end of the interpreter waits for the parent to take the last text


class Capture:
    """Routes all text. Made by ``install``; ``begin``, ``end`` and ``barrier`` are the main thread's, disarmed."""

    def __init__(self, control: MessageWriter, out_r: int, err_r: int, drop: Callable[[int], None] | None) -> None:
        self.slots = 1  # set it when the model is described
        self.forked = False  # this is a child that user code forked: it must never go on as a worker
        self.service: Final = ServiceLog(control, drop)
        self.pipes: Final = CapturePipes(out_r, err_r, self._unclaimed)
        self.private: Final[set[int]] = {control.fd, out_r, err_r}  # add what else a forked child may not have
        self.stdout: Final = RoutedStream(LogSource.STDOUT, 1, self)
        self.stderr: Final = RoutedStream(LogSource.STDERR, 2, self)
        self._control = control
        self._active: list[RunLog] = []
        self.only: RunLog | None = None  # owner of text that nobody claims
        self._before: tuple[Any, Any] = (self.stdout, self.stderr)  # sys.stdout and sys.stderr between runs
        self._flush_c = c_stdout.open_stdout()

    # --- from any thread ---

    def write(self, source: LogSource, text: str | bytes) -> None:
        """Text of a Python stream."""
        run_log = current.get() or self.only
        if self.slots == 1 and (not isinstance(text, str) or "\n" in text or "\r" in text):
            self.pipes.drain()
        (run_log or self.service).write(source, text)

    def flush(self, source: LogSource) -> None:
        if self.slots == 1:
            self.pipes.drain()
        (current.get() or self.only or self.service).flush(source)

    def _unclaimed(self) -> TextLog:
        return self.only or self.service

    # --- in the I/O thread ---

    async def pump(self, source: LogSource) -> None:
        """Read one capture pipe for the worker's life: run it once for each."""
        await self.pipes.pump(source)

    # --- on the main thread ---

    def attach(self, run_log: RunLog) -> None:
        """A run starts: what was written so far belongs to no run. Set ``current`` in the run's own context."""
        run_log.service = self.service
        run_log.has_older = self.pipes.has_text if self.slots == 1 else None
        if not self._active:
            self.barrier()
            self._before = (getattr(sys, "stdout", None), getattr(sys, "stderr", None))
        self._active.append(run_log)
        self._choose()

    def flush_user_streams(self) -> None:
        """A run is about to end: take what waits in streams of its own, which may run code of the user's."""
        self._flush_streams()

    def detach(self, run_log: RunLog) -> None:
        """A run has left user code: all of its text is sent, the record is closed, replaced streams are restored.

        Nothing of the run's text can follow; the terminal frame may.
        """
        if len(self._active) == 1:
            sys.stdout, sys.stderr = self._before
        if self.slots == 1:
            self._flush_c()
            self.pipes.finish()
        self._active.remove(run_log)
        self._choose()
        run_log.finish()

    def barrier(self) -> None:
        """All text written so far is sent or pending at its writer: before Ready, before the last message."""
        self._flush_streams()
        self._flush_c()
        self.pipes.finish()
        self.service.finish()

    def close(self) -> None:
        """At the end of the interpreter, after the ``atexit`` handlers of user code."""
        if self.forked:
            return
        try:
            self.barrier()
            self._control.finish(LAST_WORDS)
        except WriterBroken:
            return  # the parent is gone: nobody is left to hear it

    def _choose(self) -> None:
        self.only = self._active[0] if self.slots == 1 and len(self._active) == 1 else None

    def _flush_streams(self) -> None:
        """Text that waits in streams which are not ours: a user's wrapper around ours, ``sys.__stdout__``."""
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            stream: Any = getattr(sys, name, None)
            if stream is None or stream is self.stdout or stream is self.stderr:
                continue
            try:
                if not getattr(stream, "closed", False):
                    stream.flush()
            except BaseException as error:  # noqa: BLE001  a user's stream may raise anything
                with gate.runtime():
                    self.write(LogSource.STDERR, f"flushing sys.{name} failed: {last_line(error)}\n")

    # --- in a forked child ---

    def after_fork(self) -> None:
        self.forked = True
        abandon_all("this process was forked by user code; only its parent talks to the server")
        current.set(None)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self.private:
            os.dup2(null, fd, inheritable=False)
        os.close(null)
        plain = PlainRouter()
        self.stdout.router = self.stderr.router = plain
        if sys.stdout is self.stdout:
            sys.stdout = plain.stdout
        if sys.stderr is self.stderr:
            sys.stderr = plain.stderr


def install(control: MessageWriter, out_r: int, err_r: int, drop: Callable[[int], None] | None = None) -> Capture:
    """Take over the interpreter's streams, threads and forks: once, on the main thread, before user code.

    ``drop`` counts lines that are dropped. Descriptors 1 and 2 are the write ends of ``out_r`` and ``err_r`` by now.
    """
    capture = Capture(control, out_r, err_r, drop)
    # As the interpreter made them they may keep text in a block, and their encoding is the locale's.
    sys.__stdout__, sys.__stderr__ = open_plain(1), open_plain(2)  # type: ignore[misc]
    sys.stdout, sys.stderr = capture.stdout, capture.stderr
    carry((current, current_variable))
    os.register_at_fork(after_in_child=capture.after_fork)
    atexit.register(capture.close)
    return capture
