"""Runs of a trio model: tasks of one ``trio.run`` in the main thread, which is there from ``setup`` to the end.

A run is one task inside one cancel scope, and a cancel of it is that scope's: nurseries, timeouts and clean-up of the
model do what they do in any trio program. The loop comes to a cancel at its next turn. Where a call blocks it for
longer than ``BLOCKED_AFTER``, the gate's signal has ``Cancelled`` raised in that very call, as if it had been a
checkpoint: only in code of the model's (trio's own KeyboardInterrupt protection says whose frames are on top, and this
file is protected), only if the task is within a scope that is cancelled and not shielded, and once a task. A child that
has not begun when the cancel comes will make a step all the same, so the next turns of the loop are watched for it.

``setup`` may take a ``nursery``, for tasks that last as long as the worker. One of them that fails takes the model
along: all runs are cancelled and fail by its error, the parent is told, and the worker ends, since runs that wait for
such a task would wait for ever. Tasks that the model has trio itself start (system tasks) end it in the same way.

The code of a sync training runs in a thread (``training_thread.py``), for which its task waits.
"""

from __future__ import annotations

import contextvars
import inspect
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import trio
from trio.lowlevel import currently_ki_protected, disable_ki_protection, enable_ki_protection

from cog_trio.bridge.protocol import MAX_ERROR, Fatal, Kind, LogLevel, WorkerLog
from cog_trio.sdk._loader import NURSERY
from cog_trio.worker.cancel.gate import Gate
from cog_trio.worker.cancel.nested_loop import TRIO
from cog_trio.worker.cancel.stack import STATEFUL_FILES, top_is_of
from cog_trio.worker.executors.executor import Executor
from cog_trio.worker.executors.sync_run import RunEnd
from cog_trio.worker.executors.training_thread import TrainingThread
from cog_trio.worker.executors.user_signals import timers
from cog_trio.worker.logs.run_log import current
from cog_trio.worker.model.healthcheck import CANCELLED
from cog_trio.worker.model.tracebacks import cut, last_line, leaves, trace
from cog_trio.worker.runs.output_sender import OutputSender
from cog_trio.worker.runs.slot_reader import SlotReader
from cog_trio.worker.runs.slots import IOThreadInterface, Job, Stage, end_forked_child
from cog_trio.worker.runs.walk import RunTask, explain, walk

BLOCKED_AFTER: Final = 0.1  # seconds until a loop that does not come to a cancel is taken for blocked
SLICE: Final = 0.005  # seconds that a generator which never waits may keep the loop
TURNS: Final = 3  # of the loop, after which every task that it knew of at the first has made a step
LOST: Final = "the trio loop of the worker was ended by a task of the model"
T = TypeVar("T")
STATEFUL_FILES.add(__file__)


Tasks: TypeAlias = "weakref.WeakSet[trio.lowlevel.Task]"


class _TrioRun(RunTask):
    """One run as a task."""

    def __init__(self, job: Job) -> None:
        self.job: Final = job
        self.scope: Final = trio.CancelScope()
        self.task: trio.lowlevel.Task | None = None
        self.came = False  # the loop has come to its cancel
        self.struck: Final[Tasks] = weakref.WeakSet()  # those that have blocked the loop
        self.unborn: Final[Tasks] = weakref.WeakSet()  # those that were still to make their first step when it came
        self._turn_at = time.monotonic()

    @property
    def tasks(self) -> Iterator[trio.lowlevel.Task]:
        """Those that it has started, however deep."""
        parents = [] if self.task is None else [self.task]
        while parents:
            children = [task for nursery in parents.pop().child_nurseries for task in nursery.child_tasks]
            parents += children
            yield from children

    def may_strike(self, task: trio.lowlevel.Task) -> bool:
        """Whether a call that blocks in this task may be interrupted: once, and never in the clean-up of others."""
        return task not in self.struck and (not self.came or task in self.unborn)

    def call(self, function: Callable[[], T]) -> T:
        return _call(function)

    async def wait_for(self, function: Callable[[], Awaitable[T]]) -> T:
        return await _open_to_gate(function)

    async def call_in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function)

    async def send(self, frame: bytearray | None) -> None:
        if self.job.put(frame):
            await self.job.slot.writer.wait_room()
        if time.monotonic() - self._turn_at > SLICE:
            await trio.lowlevel.checkpoint()
            self._turn_at = time.monotonic()


class TrioExecutor(Executor):
    """The main thread of a worker with a trio model. Each slot is read by a task of its loop."""

    def __init__(self, gate: Gate, io_thread: IOThreadInterface) -> None:
        super().__init__(gate)
        self._context = contextvars.copy_context()  # of runs that come by ``submit``: that of setup
        self._io_thread = io_thread
        self._runs: dict[int, _TrioRun] = {}
        self._aims: set[_TrioRun] = set()  # whose cancel the loop does not come to
        self._late: tuple[trio.lowlevel.Task, trio.CancelScope] | None = None  # a health check over its time
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None  # runs and health checks
        self._background: trio.CancelScope | None = None  # around what the model runs in its own nursery
        self._setting_up: Final = trio.CancelScope()
        self._stopping = False
        self._closing = False  # nothing is left to serve
        self._fault: BaseException | None = None  # of a task in the background
        self._over: Final = trio.Event()
        self._cancelled: trio.Cancelled | None = None  # one to raise: only trio makes them
        self._training: Final = TrainingThread(gate)
        self._turn: Final = trio.CapacityLimiter(1)  # of one training

    # I/O thread

    def submit(self, job: Job) -> None:
        self._post(self._context.run, self.start, job)

    async def cancel(self, job: Job) -> None:
        """Cancel the job's scope; returns when the loop has come to it, or the job has ended."""
        if job.model.kind is Kind.SYNC:
            self._post(self._cancel, job, trio.lowlevel.current_trio_token(), trio.Event())  # ends a wait for its turn
            await self._training.cancel(job)
            return
        for _ in range(TURNS):
            came = trio.Event()
            if not self._post(self._cancel, job, trio.lowlevel.current_trio_token(), came):
                return
            while not came.is_set():
                with trio.move_on_after(BLOCKED_AFTER):
                    await came.wait()
                if job.stage is Stage.ENDED:
                    return
                run = self._runs.get(job.run)
                if run is not None and not came.is_set():
                    self._aims.add(run)
                    self._gate.poke()
            if run is None or not run.unborn:
                return

    def stop(self) -> None:
        self._stopping = True  # first: a loop that begins after this looks at it
        if self._token is not None:
            self._post(self._look_for_end)

    def check(
        self,
        context: contextvars.Context,
        check: Callable[[], Coroutine[Any, Any, str | None]],
        finish: Callable[[str | None], None],
    ) -> Callable[[], object]:
        """Run a health check as a task, in this context; gives what cancels it, also where it blocks the loop."""
        scope = trio.CancelScope()
        tasks: list[trio.lowlevel.Task] = []

        @enable_ki_protection
        async def whole() -> None:
            told: str | None = CANCELLED
            tasks.append(trio.lowlevel.current_task())
            try:
                with scope:
                    told = await _open_to_gate(check)
            finally:
                finish(told)

        def cut() -> None:
            self._post(scope.cancel)
            self._late = (tasks[0], scope) if tasks else None
            self._gate.poke()

        def begin() -> None:
            if self._nursery is None or self._closing:
                finish(CANCELLED)
            else:
                context.run(self._nursery.start_soon, whole)

        if not self._post(begin):
            finish(CANCELLED)
        return cut

    def _post(self, function: Callable[..., object], *args: Any) -> bool:
        """Have a function called in the loop; whether there is one."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False  # every run has ended, and the parent knows
        return True

    # Main thread, outside of the loop

    def serve(self, setups: Iterable[Callable[..., Any]], ready: Callable[[], bool]) -> None:
        """Set up, then, if ``ready`` says so, serve until told to stop.

        A plain ``setup`` is called before the loop begins, so it may run one of its own; the awaitables come after.

        Raises:
          BaseException: what ``setup`` raised, or a task that it has started, before ``ready`` was called.
        """
        served = False
        waiting: list[Callable[..., Any]] = []
        for setup in setups:
            if NURSERY in inspect.signature(setup).parameters:
                waiting.append(setup)
                continue
            result = setup()
            if self._gate.forked:
                end_forked_child(None)
            if inspect.isawaitable(result):
                waiting.append(partial(_same, result))

        def now_ready() -> bool:
            nonlocal served
            served = ready()
            return served

        self._gate.aim, self._gate.in_task = self._aim, self._in_user_frames
        try:
            trio.run(self._main, waiting, now_ready, strict_exception_groups=True)
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, trio.TrioInternalError) else None
            if not served:
                if cause is None:
                    raise
                raise cause  # noqa: B904  it is the model's error, and no fault inside of trio
            cause = cause or error
            self._report(LogLevel.ERROR, trace(cause))
            self._io_thread.send(Fatal(f"{LOST}: {last_line(cause)}"))
        finally:
            self._gate.aim = self._gate.in_task = None

    def _report(self, level: LogLevel, text: str) -> None:
        self._io_thread.send(WorkerLog(__name__, level, cut(text, MAX_ERROR)))

    # Main thread, in the loop

    @enable_ki_protection
    async def _main(self, setups: list[Callable[..., Any]], ready: Callable[[], bool]) -> None:
        fault: BaseException | None = None
        self._cancelled = await _a_cancelled()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            background = await nursery.start(self._keep_background)
            self._token = trio.lowlevel.current_trio_token()
            try:
                with self._setting_up:
                    for setup in setups:
                        takes = NURSERY in inspect.signature(setup).parameters
                        await _open_to_gate(partial(setup, nursery=background) if takes else setup)
                        if self._gate.forked:
                            end_forked_child(None)
                self._context = contextvars.copy_context()
                if self._fault is None and ready():
                    for reader in self.readers:
                        nursery.start_soon(self._read_slot, reader)
                    self._look_for_end()
                    await self._over.wait()
            except BaseException as error:  # noqa: BLE001  raised below: a nursery would put it into a group
                if self._gate.forked:
                    end_forked_child(error)
                fault = error
            self._closing = True
            background.cancel_scope.cancel()
            nursery.cancel_scope.cancel()  # health checks and readers; no run is left
        if self._fault is not None or fault is not None:
            raise self._fault or fault  # type: ignore[misc]  # one of them is there

    @enable_ki_protection
    async def _keep_background(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """The nursery of the model's own tasks, and what becomes of their errors."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(nursery)
                await trio.sleep_forever()
        except BaseException as error:
            if self._gate.forked:
                end_forked_child(error)
            if _is_cancelled(error):
                raise
            if self._closing:
                self._report(LogLevel.WARNING, f"a background task of the model ended with {last_line(error)}")
                return
            self._fault = error
            self._setting_up.cancel()
            for run in self._runs.values():
                run.scope.cancel()
                if run.job.model.kind is Kind.SYNC:
                    what = f"the end of {run.job.id}"
                    self._io_thread.start_task(what, run.job.slot.fail, self._training.cancel, run.job)
            self._look_for_end()

    @property
    def _lost(self) -> str:
        """Why runs end that nobody has cancelled."""
        return LOST if self._fault is None else f"{last_line(self._fault)} (in a background task of the model)"

    def _look_for_end(self) -> None:
        if (self._stopping or self._fault is not None) and not self._runs:
            self._over.set()

    @enable_ki_protection
    async def _read_slot(self, reader: SlotReader) -> None:
        while True:
            await trio.lowlevel.wait_readable(reader.slot.fd)
            if not reader.read():
                return

    def start_model_task(self, function: Callable[[], Awaitable[None]]) -> None:
        """Start a task of the model's that belongs to no run, and ends at the latest with the loop."""
        assert self._nursery is not None
        self._nursery.start_soon(function)

    def start(self, job: Job) -> None:
        """Begin a job as a task."""
        if job.cancelled:
            job.end()
            return
        if self._closing or self._fault is not None:
            job.end(self._lost)
            return
        assert self._nursery is not None
        run = self._runs[job.run] = _TrioRun(job)
        self._nursery.start_soon(self._run, run)

    def _cancel(self, job: Job, token: trio.lowlevel.TrioToken, came: trio.Event) -> None:
        run = self._runs.get(job.run)
        if run is not None:  # else it has not begun (it will be cut) or has ended
            self._aims.discard(run)
            if not self._aims:
                self._gate.settle()
            run.scope.cancel()
            if not run.came:
                run.unborn.update(task for task in run.tasks if _is_unborn(task))
                run.came = True
        token.run_sync_soon(came.set)  # last: who hears of it looks at what is unborn

    def _in_user_frames(self) -> bool:
        return not currently_ki_protected() and not top_is_of(TRIO)

    def _aim(self) -> BaseException | None:
        """What the gate may raise now; on the main thread, maybe in a signal handler."""
        self._gate.settle()  # whatever comes of it: the I/O thread pokes again
        if not self._in_user_frames():
            return None
        task = trio.lowlevel.current_task()
        late = self._late
        if late is not None and late[0] is task:
            late[1].cancel()
            if not _is_shielded():
                self._late = None
                return self._error()
        for run in list(self._aims):
            run.scope.cancel()
            if current.get() is run.job.run_log and run.may_strike(task) and not _is_shielded():
                run.struck.add(task)
                return self._error()
        return None

    def _error(self) -> trio.Cancelled:
        assert self._cancelled is not None
        error = self._cancelled.with_traceback(None)
        error.__context__ = error.__cause__ = None
        return error

    @enable_ki_protection
    async def _run(self, run: _TrioRun) -> None:
        try:
            await self._run_to_the_end(run)
        except Exception as error:  # noqa: BLE001  a fault of ours costs this run alone
            run.job.break_off(error)
        finally:
            self._drop(run)

    async def _run_to_the_end(self, run: _TrioRun) -> None:
        job = run.job
        if job.cancelled:
            job.end()
            return
        run.task = trio.lowlevel.current_task()
        job.open()
        end = await (self._call_in_thread(run) if job.model.kind is Kind.SYNC else self._call(run))
        job.end(*end)

    async def _call(self, run: _TrioRun) -> RunEnd:
        job = run.job
        timers.begin_run()
        fault: BaseException | None = None
        lost: str | None = None
        outputs = OutputSender(job)
        begin = time.perf_counter()
        with run.scope:  # what is said about a fault is asked of code of the model's, too
            fault = await run.drive(walk(job, outputs, cancel=trio.Cancelled, is_cut=lambda: run.scope.cancel_called))
            if self._gate.forked:
                end_forked_child(fault)
            if not job.cancelled and _is_cancelled(fault):
                fault, lost = None, self._lost
            text = explain(_call, outputs, fault)
        fault = None  # and what its frames hold: it goes while its text is still this run's
        timers.end_run()
        return lost or text, time.perf_counter() - begin, outputs.is_stream

    async def _call_in_thread(self, run: _TrioRun) -> RunEnd:
        """Run a sync training. Its scope's cancel ends the wait for its turn, not the call."""
        end: RunEnd | None = None
        with run.scope:
            end = await trio.to_thread.run_sync(self._training.run, run.job, limiter=self._turn)
        if end is None or (end[0] is not None and self._fault is not None):
            return self._lost, 0.0, False
        return end

    def _drop(self, run: _TrioRun) -> None:
        del self._runs[run.job.run]
        self._aims.discard(run)
        self._look_for_end()


def _is_shielded() -> bool:
    """Whether the running task, a scope of which is cancelled, is shielded from that."""
    return trio.current_effective_deadline() != -math.inf


async def _a_cancelled() -> trio.Cancelled:
    """One as trio makes them."""
    made: trio.Cancelled | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            made = error
            raise
    assert made is not None
    return made


def _is_unborn(task: trio.lowlevel.Task) -> bool:
    coroutine = task.coro
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def _is_cancelled(fault: BaseException | None) -> bool:
    """Whether a fault is nothing but the end of a scope."""
    return fault is not None and all(isinstance(error, trio.Cancelled) for error in leaves(fault))


@disable_ki_protection
async def _open_to_gate(step: Callable[[], Awaitable[T]]) -> T:
    """Await user code, open to the gate: its frames, and those that it calls, may be interrupted."""
    return await step()


@disable_ki_protection
def _call(step: Callable[[], T]) -> T:
    """Call user code that is not awaited, open to the gate."""
    return step()


def _same(awaitable: Awaitable[T]) -> Awaitable[T]:
    return awaitable
