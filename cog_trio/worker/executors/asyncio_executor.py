"""Runs of an async model: tasks of one asyncio loop in the main thread, as many at once as there are slots.

A run is one task. A cancel is one ``task.cancel()``; the run has ended when its task has, whatever became of the
CancelledError. Code that blocks the loop is interrupted by the gate's signal: when the loop has not come to
the cancel within ``BLOCKED_AFTER`` the handler raises CancelledError, if the task that runs right then is the one
that is meant and its user frames are on the stack, or one that its code started. What a signal handler of the model's
raises reaches the task that is at work; between the steps of tasks it is nobody's (``user_signals.py``).

``SystemExit`` and ``KeyboardInterrupt`` of a run are its failure, caught before asyncio sees them; those of a stray
task end ``run_forever``, which is entered again: all other tasks live on.

The code of a sync training runs in a thread (``training_thread.py``), for which its task waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

import trio

from cog_trio.bridge.protocol import Kind, LogLevel, WorkerLog
from cog_trio.worker.cancel.gate import Gate
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.executors.executor import Executor, set_up
from cog_trio.worker.executors.sync_run import RunEnd
from cog_trio.worker.executors.training_thread import TrainingThread
from cog_trio.worker.executors.user_signals import timers
from cog_trio.worker.logs.run_log import current
from cog_trio.worker.model.healthcheck import CANCELLED
from cog_trio.worker.model.tracebacks import last_line
from cog_trio.worker.runs.output_sender import OutputSender
from cog_trio.worker.runs.slot_reader import SlotReader
from cog_trio.worker.runs.slots import IOThreadInterface, Job, Stage, end_forked_child
from cog_trio.worker.runs.walk import RunTask, explain, walk

BLOCKED_AFTER: Final = 0.1  # seconds until a loop that does not come to a cancel is taken for blocked
SLICE: Final = 0.005  # seconds that a generator which never waits may keep the loop
LEAVE: Final = 1.0  # seconds for tasks that are left at the end
T = TypeVar("T")
STATEFUL_FILES.add(__file__)


class _Task(RunTask):
    """One run as a task."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job: Final = job
        self._loop: Final = loop
        self._turn_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.inside = False  # user frames of it may be on the stack
        self.delivered = False  # it has got its one CancelledError
        self.struck: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # tasks of its own that blocked the loop

    def call(self, function: Callable[[], T]) -> T:
        try:
            self.inside = True
            return function()
        finally:
            self.inside = False

    async def wait_for(self, function: Callable[[], Awaitable[Any]]) -> Any:
        awaitable = None
        try:
            self.inside = True
            awaitable = function()
            return await awaitable
        finally:
            self.inside = False
            if inspect.iscoroutine(awaitable):
                awaitable.close()  # a cancel came before its first step

    async def call_in_thread(self, function: Callable[[], Any]) -> Any:
        """In the context of the task.

        Left alone, the thread would go on to write into the folder of a run that has ended.
        """
        done = self._loop.run_in_executor(None, contextvars.copy_context().run, function)
        try:
            return await asyncio.shield(done)
        finally:
            await _end_of(done)

    async def send(self, frame: bytearray | None) -> None:
        if self.job.put(frame):
            room = self._loop.create_future()
            if self.job.slot.writer.when_room(partial(_tell, self._loop, room)):
                await room
        if time.monotonic() - self._turn_at > SLICE:
            await asyncio.sleep(0)
            self._turn_at = time.monotonic()


class AsyncExecutor(Executor):
    """The main thread of a worker with an async model; ``loop`` is there from the start, for ``setup``.

    It reads the slots on the loop itself, by ``add_reader``: a loop that is blocked takes no new runs.
    """

    def __init__(self, gate: Gate, io_thread: IOThreadInterface) -> None:
        super().__init__(gate)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self._context = contextvars.copy_context()  # of the main thread, for runs that come by ``submit``
        self._io_thread = io_thread
        self._tasks: dict[int, _Task] = {}  # by run
        self._aims: set[_Task] = set()  # whose cancel the loop does not come to
        self._late: asyncio.Task[Any] | None = None  # a health check over its time, to be interrupted if it blocks
        self._stopping = False
        self._training: Final = TrainingThread(gate)
        self._turn: Final = asyncio.Lock()  # of one training
        self._thread: Final = ThreadPoolExecutor(1, "training")  # starts with the first one

    # I/O thread

    def submit(self, job: Job) -> None:
        self.loop.call_soon_threadsafe(self.start, job, context=self._context)

    async def cancel(self, job: Job) -> None:
        """Cancel the job's task; returns when the loop has come to it, or the job has ended."""
        if job.model.kind is Kind.SYNC:
            self.loop.call_soon_threadsafe(self._cancel, job)  # ends a wait for its turn
            await self._training.cancel(job)
            return
        came = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def tell() -> None:
            try:
                self._cancel(job)
            finally:
                token.run_sync_soon(came.set)

        self.loop.call_soon_threadsafe(tell)
        while job.stage is not Stage.ENDED:
            with trio.move_on_after(BLOCKED_AFTER) as blocked:
                await came.wait()
            if not blocked.cancelled_caught:
                return
            task = self._tasks.get(job.run)
            if task is not None and not task.delivered:
                self._aims.add(task)
                self._gate.poke()

    def check(
        self,
        context: contextvars.Context,
        check: Callable[[], Coroutine[Any, Any, str | None]],
        finish: Callable[[str | None], None],
    ) -> Callable[[], object]:
        """Run a health check as a task, in this context; gives what cancels it, also where it blocks the loop."""
        tasks: list[asyncio.Task[str | None]] = []

        def begin() -> None:
            task = context.run(self.loop.create_task, check())
            task.add_done_callback(lambda task: finish(CANCELLED if task.cancelled() else task.result()))
            tasks.append(task)

        def cut() -> None:
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            self._late = next(iter(tasks), None)
            self._gate.poke()

        self.loop.call_soon_threadsafe(begin)
        return cut

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop)

    # Main thread

    def complete(self, awaitable: Awaitable[T]) -> T:
        """Run one awaitable on the loop, before ``serve``."""
        self._renew()

        async def whole() -> T:
            return await awaitable

        return self.loop.run_until_complete(whole())

    def _renew(self) -> None:
        """Where code that ran beside the loop has closed it: a new one."""
        if self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)

    def serve(self, setups: Iterable[Callable[..., Any]], ready: Callable[[], bool]) -> None:
        set_up(setups, self.complete, self._gate)
        if ready():
            self._renew()  # a sync setup may have closed the loop that it found
            self._serve()
            self.close()

    def run(self, job: Job) -> None:
        """Run one job to its end, in place of ``serve``: the loop stands still before and after."""
        self._stopping = True
        self._renew()
        self.start(job)
        self._serve()

    def _serve(self) -> None:
        self._gate.aim, self._gate.in_task = self._aim, self._in_user_frames
        self._context = contextvars.copy_context()  # what a plain ``setup`` has set is seen in runs
        for reader in self.readers:
            self.loop.add_reader(reader.slot.fd, self._read, reader)
        while not (self._stopping and not self._tasks):
            try:
                self.loop.run_forever()
            except BaseException as stray:  # asyncio lets two kinds through; a loop of the model's, any
                if self.loop.is_closed():
                    raise
                text = f"a task that belongs to no prediction raised {last_line(stray)}; the worker goes on"
                self._io_thread.send(WorkerLog("cog_trio.worker.executors.asyncio_executor", LogLevel.WARNING, text))
        self._gate.aim = self._gate.in_task = None

    def close(self) -> None:
        """What ``asyncio.run`` does at its end, bounded."""
        self._thread.shutdown()  # at once: no run is left
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        try:
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=LEAVE))
            self.loop.run_until_complete(asyncio.wait_for(self.loop.shutdown_asyncgens(), LEAVE))
        except (SystemExit, KeyboardInterrupt, asyncio.TimeoutError) as stray:
            text = f"closing the event loop: {last_line(stray)}"
            self._io_thread.send(WorkerLog("cog_trio.worker.executors.asyncio_executor", LogLevel.WARNING, text))

    def _stop(self) -> None:
        self._stopping = True
        if not self._tasks:
            self.loop.stop()

    def _read(self, reader: SlotReader) -> None:
        if not reader.read():
            self.loop.remove_reader(reader.slot.fd)

    def start(self, job: Job) -> None:
        """Begin a job as a task."""
        if job.cancelled:
            job.end()
            return
        task = self._tasks[job.run] = _Task(job, self.loop)
        task.task = self.loop.create_task(self._run(task))
        task.task.add_done_callback(partial(self._drop, task))

    def _cancel(self, job: Job) -> None:
        task = self._tasks.get(job.run)
        if task is None:
            return  # not begun (it will be cut) or ended
        self._aims.discard(task)
        if not self._aims:
            self._gate.settle()
        if job.stage is Stage.WAITING:
            return  # its first step, which is due, will see it; a cancelled task would never make that step
        if not task.delivered and task.task is not None:
            task.delivered = True
            for one in self._tasks_inside(task) or [task.task]:
                one.cancel()

    def _tasks_inside(self, task: _Task) -> list[asyncio.Task[Any]]:
        """Return the tasks that a run waits for by running the loop itself, as nest_asyncio lets it.

        A cancel of the run's own task would come at its next ``await``, when they have ended.
        """
        assert task.task is not None
        coroutine = task.task.get_coro()
        if not inspect.iscoroutine(coroutine) or not coroutine.cr_running:
            return []
        return [one for one in asyncio.all_tasks(self.loop) if one is not task.task and _belongs_to(one, task.job)]

    def _aim(self) -> BaseException | None:
        """What the gate may raise now; on the main thread, maybe in a signal handler."""
        self._gate.settle()  # whatever comes of it: the I/O thread pokes again
        running = asyncio.current_task(self.loop)
        if running is not None and running is self._late:
            self._late = None
            return asyncio.CancelledError()
        if not _is_in_step():
            return None
        for task in list(self._aims):  # in one call: the I/O thread adds to them
            if task.task is running:
                if task.inside and not task.delivered:
                    task.delivered = True
                    self._aims.discard(task)
                    return asyncio.CancelledError()
            elif running is not None and current.get() is task.job.run_log and running not in task.struck:
                task.struck.add(running)  # a task that it started: its own cancel follows when the loop is free
                return asyncio.CancelledError()
        return None  # another task blocks the loop

    def _in_user_frames(self) -> bool:
        running = asyncio.current_task(self.loop)
        if running is None or not _is_in_step():
            return False
        return all(task.inside for task in self._tasks.values() if task.task is running)

    def _drop(self, task: _Task, done: asyncio.Task[None]) -> None:
        """The task is over: if user code cancelled it before its first step, or ours failed, its run has not ended."""
        if task.job.stage is not Stage.ENDED:
            self._tasks.pop(task.job.run, None)
            fault = None if done.cancelled() else done.exception()
            if fault is None:
                task.job.end("CancelledError")
            else:
                task.job.break_off(fault)
        if self._stopping and not self._tasks:
            self.loop.stop()

    async def _run(self, task: _Task) -> None:
        job = task.job
        if job.cancelled:
            self._tasks.pop(job.run)
            job.end()
            return
        job.open()
        end = await (self._call_in_thread(job) if job.model.kind is Kind.SYNC else self._call(task))
        self._tasks.pop(job.run)
        self._aims.discard(task)
        job.end(*end)

    async def _call(self, task: _Task) -> RunEnd:
        job = task.job
        timers.begin_run()
        outputs = OutputSender(job)
        begin = time.perf_counter()
        fault = await task.drive(walk(job, outputs, cancel=asyncio.CancelledError, is_cut=lambda: job.cancelled))
        if self._gate.forked:
            end_forked_child(fault)
        text = explain(task.call, outputs, fault)
        fault = None  # and what its frames hold: it goes while its text is still this run's
        timers.end_run()
        return text, time.perf_counter() - begin, outputs.is_stream

    async def _call_in_thread(self, job: Job) -> RunEnd:
        """Run a sync training. Cancellation: raised only while it waits for its turn."""
        async with self._turn:
            done = self.loop.run_in_executor(self._thread, contextvars.copy_context().run, self._training.run, job)
            await _end_of(done)
            return done.result()


def _belongs_to(task: asyncio.Task[Any], job: Job) -> bool:
    """Whether code of the job has started the task; before Python 3.12 known of tasks in Python code alone, which are
    those that nest_asyncio makes."""
    find = getattr(task, "get_context", None)
    context: contextvars.Context | None = getattr(task, "_context", None) if find is None else find()
    return context is not None and context.get(current) is job.run_log


def _is_in_step() -> bool:
    """Whether the running task's code is on the stack.

    It is not while asyncio hands the task back: the task is the current one still, but an exception there would lose
    its next step, and it would never end.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _HANDLE:
        if frame.f_code.co_flags & _RESUMABLE:
            return True
        frame = frame.f_back
    return False


_HANDLE: Final = asyncio.Handle._run.__code__  # calls each step of a task
_RESUMABLE: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


async def _end_of(done: asyncio.Future[Any]) -> None:
    """Wait for the end of a thread's work. Cancellation: it waits on."""
    while not done.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([done])


def _tell(loop: asyncio.AbstractEventLoop, room: asyncio.Future[None]) -> None:
    loop.call_soon_threadsafe(_set, room)


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
