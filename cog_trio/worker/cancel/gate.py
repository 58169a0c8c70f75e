"""The gate: when a cancel may be raised in the main thread, and how it gets there.

A cancel comes as a real signal, so that sleeps, locks and reads end at once. Its handler raises only while user
frames run: inside ``user_code``, and outside every ``runtime``. Each function of ours that user code can call
(write, flush, record) runs inside ``runtime``, so no frame, lock or buffer is ever left half done; what came
meanwhile is raised when it is left; so is what a signal handler of the user's raised (``user_signals.py``). While the
import system is on the stack a cancel waits: raised in there it would leave a module broken for the worker's life. So
it does while a process is being started, whose pipe would stay open.

A run gets one delivery: its clean-up code is never interrupted again. A delivery that ``__del__`` or a weakref callback
swallowed is seen by ``sys.unraisablehook`` and becomes due again; so does one that C code dropped, whose traceback
never left our handler. Nothing is raised below the code that swallows: ``insist`` signals again, within
``FALLBACK_AFTER``, until the delivery has arrived.

Everything here relies on one fact: the interpreter runs signal handlers between bytecodes of the main thread, so a
handler that raises in ``__enter__`` or ``__exit__`` did so before or after the store that changes the state, never
in the middle, and each of those two places leaves the state right. All counters belong to the main thread; the
I/O thread writes ``requested`` and ``pending`` before it looks at ``current``, the main thread the other way round.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from cog_trio.worker.cancel.nested_loop import NestedLoop
from cog_trio.worker.cancel.stack import HANDLERS, STATEFUL_FILES, STATELESS, is_unbreakable, lies_below

if TYPE_CHECKING:
    from cog_trio.worker.cancel.thread_gate import ThreadGate

FALLBACK_AFTER: Final = 0.2  # seconds from the request until the exception is set without a signal
set_async_exc: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_NOBODY: Final[AbstractContextManager[None]] = contextlib.nullcontext()
STATEFUL_FILES.add(__file__)


class _Runtime:
    """Our own code, called by user code in the main thread."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.depth += 1

    def __exit__(self, *_: object) -> None:
        gate = self._gate
        gate.depth -= 1
        if gate.pending:
            gate.deliver()


STATELESS.update((_Runtime.__enter__.__code__, _Runtime.__exit__.__code__))  # before and after their stores


class _UserCode:
    """Frames of a sync run of the user's."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        gate.inside = True
        if gate.pending:
            try:
                gate.deliver()
            except BaseException:
                gate.inside, gate.raised = False, None
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._gate.inside, self._gate.raised = False, None


class Gate:
    """Whether, and into which run, a cancel may be raised now.

    Until ``install`` and in forked children it lets nothing through and ``runtime`` costs one call.
    """

    __slots__ = (
        "_loop",
        "_runtime",
        "_user",
        "_wake",
        "_woken",
        "aim",
        "current",
        "delivered",
        "depth",
        "doubted",
        "exception",
        "forked",
        "in_task",
        "inside",
        "judging",
        "main",
        "owed",
        "owing",
        "pending",
        "raised",
        "requested",
        "serving",
        "signal",
        "threads",
    )

    def __init__(self) -> None:
        self.main = 0  # the thread in which cancels are raised; 0: none
        self.exception: type[BaseException] = KeyboardInterrupt
        self._runtime = _Runtime(self)
        self._user = _UserCode(self)
        self._loop = NestedLoop()
        self._wake: tuple[int, int] | None = None
        self._woken = False  # there may be something to drain
        self.aim: Callable[[], BaseException | None] | None = None
        self.current = 0  # the sync run that owns the main thread; 0: none
        self.requested = 0  # the run that was asked to end last
        self.delivered = 0  # the run that has got its one delivery
        self.raised: BaseException | None = None  # that delivery, while nobody has looked whether it arrived
        self.doubted: BaseException | None = None  # one that was raised when ``insist`` looked last
        self.depth = 0  # calls of ours on the stack
        self.inside = False  # user frames are on the stack
        self.judging = False  # a signal handler decides what may be raised: what others raise meanwhile must wait
        self.serving = False  # the main thread is ours but for user frames of runs; before, imports and sets up
        self.in_task: Callable[[], bool] | None = None  # async: whether the running task is in user frames
        self.owed: BaseException | None = None  # raised by a signal handler of the user's, due in the current run
        self.owing = False  # the current run can still get one
        self.pending = False  # a request came that may not have been delivered yet
        self.forked = False  # this is a child that user code forked: it must never go on as a worker
        self.signal = 0
        self.threads: dict[int, ThreadGate] = {}  # other threads that runs own, by their ids

    @property
    def _user_frames(self) -> bool:
        return self.inside or not self.serving or self.forked or (self.in_task is not None and self.in_task())

    def exposed(self, frame: FrameType | None) -> bool:
        """User frames are on top: what a signal handler of the user's raises in this frame is theirs to get."""
        if frame is not None:
            code = frame.f_code
            if code.co_filename in STATEFUL_FILES and code not in STATELESS:
                return False
        return not self.depth and self._user_frames

    def owe(self, error: BaseException) -> bool:
        """Raise this as soon as the interrupted user code goes on; return whether there is any. On the main thread."""
        if not self.owing and not (self.depth and self._user_frames and not self.current):
            return False
        self.owed = error
        self.pending = True
        self._wake_up()
        return True

    @property
    def on_loop(self) -> bool:
        """Whether this thread runs the event loop of an async or trio model, which nothing may block."""
        return self.in_task is not None and threading.get_ident() == self.main

    @property
    def wake_fd(self) -> int | None:
        """Readable while the current run has a request that was not delivered: ends a wait for room.

        None where such a wait must go on: off the main thread, and in the clean-up after the delivery.
        """
        if self._wake is None or self.main != threading.get_ident():
            return None
        return None if self.delivered == self.current and self.aim is None else self._wake[0]

    def install(self, exception: type[BaseException], signum: int | None = None) -> None:
        """Take the signal and ``sys.unraisablehook``: once, on the main thread, before user code is imported."""
        self.signal = choose_signal() if signum is None else signum
        self.exception = exception
        self._wake = os.pipe()
        for fd in self._wake:
            os.set_blocking(fd, False)
        signal.signal(self.signal, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {self.signal})
        sys.unraisablehook = Unraisable(self, sys.unraisablehook)
        self.main = threading.get_ident()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        if self.main:
            self.forked = True
            self.main = 0
            self.inside = self.pending = False
            self.aim = self.owed = self.raised = self.doubted = None
            signal.signal(self.signal, signal.SIG_DFL)
            if self._wake is not None:
                for fd in self._wake:
                    with contextlib.suppress(OSError):  # closed already by what the child did
                        os.close(fd)
                self._wake = None

    # Main thread

    def begin_run(self, run: int) -> None:
        """A sync run takes the main thread; no user frame is on the stack yet."""
        self.current = run
        self.inside = False
        self.owing = True
        self._drain()  # a byte for the run before that was written after its delivery

    def close(self) -> None:
        """Its user code has come to its end; what is still owed is dropped."""
        self.inside = self.owing = False
        self.owed = None

    def end_run(self) -> None:
        """It has left; late requests for it find nothing."""
        run, self.current = self.current, 0
        self.inside = False
        if self.requested <= run:
            self.pending = False

    def user_code(self, run: int) -> AbstractContextManager[None]:
        """Around every entry into user frames of this run.

        Raises the cancel, out of the ``with`` statement itself too, when one is due.
        """
        self.current = run
        return self._user

    def runtime(self) -> AbstractContextManager[None]:
        """Around the whole body of a function of ours that user code can call. It must not contain an ``await``.

        In a thread that has no gate it does nothing.
        """
        thread = threading.get_ident()
        if thread == self.main:
            return self._runtime
        other = self.threads.get(thread)
        return _NOBODY if other is None else other.runtime

    def claim(self, run: int) -> bool:
        """Whether a request waits for this run; if so it counts as delivered, by the caller's own hand."""
        if self.requested != run or self.delivered == run:
            return False
        self.delivered = run
        self.settle()
        return True

    def deliver(self) -> None:
        """Raise what is due, if user frames may be interrupted here; for code of ours that user code has called.

        Below a signal handler it is left to that, or to the next signal. There the interpreter itself writes to
        ``sys.stderr`` (a wake-up descriptor of the user's is closed), and swallows what the stream raises.
        """
        if not lies_below(sys._getframe(1), HANDLERS):
            self._deliver()

    def _deliver(self) -> None:
        if self.depth:
            return
        if self.owed is not None and self._user_frames:
            owed, self.owed = self.owed, None
            if self.aim is None and not self._is_due():
                self.settle()
            raise owed
        if is_unbreakable(sys._getframe(1)):
            return  # ``insist``, or the next poke of an async runner, brings it again
        if self.aim is not None:
            error = self.aim()
            if error is not None:
                raise error
        elif self._is_due():
            if not self.inside or self._loop.ask(self, self.current):
                return
            self._watch_losses()
            self._drain()
            self.raised = self._loop.exception(self.exception)()
            # no call from here on: deep in a recursion it would raise, and the one delivery be lost
            self.pending, self.delivered = False, self.current
            raise self.raised
        else:  # a poke that was meant for the run before
            self.settle()
            if self._is_due():  # it came between the look and the deed
                self._wake_up()
                self.pending = True

    def _is_due(self) -> bool:
        """Return whether the current sync run was asked to end and has not got its delivery."""
        return self.requested == self.current != self.delivered

    def _watch_losses(self) -> None:
        """A model may have put its own hook in place of ours."""
        if not isinstance(sys.unraisablehook, Unraisable):
            sys.unraisablehook = Unraisable(self, sys.unraisablehook)

    def settle(self) -> None:
        """Nothing is due any more."""
        self.pending = False
        self._drain()

    def _drain(self) -> None:
        if not self._woken:
            return
        self._woken = False
        try:  # no ``suppress``: frames of the library's are not ours, and may be raised in
            if self._wake is not None:
                os.read(self._wake[0], 4096)
        except BlockingIOError:
            return

    def _on_signal(self, _signum: int, frame: FrameType | None) -> None:
        if self.raised is not None and self.raised is self.doubted:
            self._look_back()
        if not self.pending:
            return
        nested, self.judging = self.judging, True
        try:
            if not lies_below(frame, LOSERS):
                self._deliver()
        finally:
            self.judging = nested

    def _look_back(self) -> None:
        """Some C code looks for signals and drops what they raise: the finalizer of a socket, by way of its repr."""
        trace = None if self.raised is None else self.raised.__traceback__  # none: dropped before Python code saw it
        self.raised = self.doubted = None
        if (trace is None or trace.tb_frame.f_code in HANDLERS) and self.delivered == self.current:
            self.delivered = 0
            self.pending = True

    # I/O thread

    def request(self, run: int) -> None:
        """End this sync run. Repeats do nothing; a run that is not the current one is only noted."""
        if self.requested == run:
            return
        self.requested = run
        self.pending = True
        if self.current == run:
            self.poke()

    def poke(self) -> None:
        """Have the main thread look at what is due, also while it waits for room."""
        self.pending = True
        self._wake_up()
        self.kick()

    def _wake_up(self) -> None:
        try:
            if self._wake is not None:
                self._woken = True  # also before: whoever waits on the pipe may drain it at once
                os.write(self._wake[1], b"\0")
                self._woken = True
        except BlockingIOError:  # full: readable, which is all that is asked
            return

    def kick(self) -> None:
        """Send the signal to the main thread."""
        if self.main:
            signal.pthread_kill(self.main, self.signal)

    def insist(self, run: int) -> None:
        """``FALLBACK_AFTER`` has passed once more and the run goes on: signal again, or, where the main thread is
        deaf to that (blocked, or its handler was replaced), set the exception without a signal.

        It lands before the main thread can enter code of ours, since each entry there is a place where it would be
        raised. It does not end a sleep, so it is not a substitute where the signal works.
        """
        if self.current != run or self.requested != run:
            return
        if not self.pending:
            raised, doubted = self.raised, self.doubted
            self.doubted = raised
            if raised is not None and raised is doubted:  # a whole while ago, so it is under way no more
                self.kick()
            return
        if signal.getsignal(self.signal) == self._on_signal and not is_blocked(self.signal):
            self.kick()
            return
        if is_unbreakable(sys._current_frames().get(self.main)):
            return
        self._watch_losses()
        raise_there, main, exception = set_async_exc, ctypes.c_ulong(self.main), ctypes.py_object(self.exception)
        # No call stands between the look and the deed: the interpreter may change threads after one.
        if self.inside and not self.depth and self.delivered != run:
            self.delivered = run
            self.pending = False
            raise_there(main, exception)

    # From the unraisable hook

    def lost(self, kind: type[BaseException]) -> bool:
        """Whether this was our delivery to the current run, which is then due again."""
        if (other := self.threads.get(threading.get_ident())) is not None:
            return other.lost(kind)
        if not issubclass(kind, self.exception) or not self.current or self.delivered != self.current:
            return False
        if threading.get_ident() != self.main:
            return False
        self.delivered = 0
        self.pending = True  # and ``insist`` sends the signal again
        return True


class Unraisable:
    """``sys.unraisablehook`` that tells the gate of a swallowed delivery, and passes on the rest."""

    def __init__(self, gate: Gate, inner: Callable[[Any], object]) -> None:
        self._gate = gate
        self._inner = inner

    def __call__(self, unraisable: Any) -> None:
        gate = self._gate
        gate.depth += 1
        try:
            if not gate.lost(unraisable.exc_type):
                self._inner(unraisable)
        finally:
            gate.depth -= 1


def choose_signal() -> int:
    """Return the number of the signal: a real-time one, since models use the two of the user; SIGUSR2 on macOS."""
    rtmin = getattr(signal, "SIGRTMIN", None)
    return int(signal.SIGUSR2 if rtmin is None else rtmin + 3)


def is_blocked(signum: int) -> bool:
    """Return whether the main thread blocks the signal; False where that can't be seen."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/status") as status:
            mask = next(line for line in status if line.startswith("SigBlk:"))
    except (OSError, StopIteration):  # macOS
        return False
    return bool(int(mask.split()[1], 16) >> (signum - 1) & 1)


LOSERS: Final = frozenset(
    {
        Unraisable.__call__.__code__,
        socket.socket.__repr__.__code__,  # called by the finalizer, which drops what it raises without a word
    }
)
"""What is raised below them is lost."""
HANDLERS.add(Gate._on_signal.__code__)
gate: Final = Gate()
"""The worker's one gate."""
