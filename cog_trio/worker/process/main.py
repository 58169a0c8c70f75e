"""The life of a worker as its main thread sees it: load, describe, set up, serve, leave.

Everything that user code may touch is in place before the first line of it is imported: captured streams, the gate,
the I/O thread that hears the parent. What fails up to Ready is said as Failed, with the traceback as the last of the
setup's log, and the worker leaves with status 0. It always leaves through the normal end of the interpreter, so that
``atexit`` handlers run and are heard; the I/O thread outlives them and is stopped after the last of them.
"""

from __future__ import annotations

import atexit
import math
import os
import platform
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

from cog_trio.bridge.protocol import PROTOCOL_VERSION, Described, Failed, Init, LogLevel, LogSource, Ready, WorkerLog
from cog_trio.sdk._version import __version__
from cog_trio.sdk.exceptions import CancelationException
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.executors.user_signals import guard
from cog_trio.worker.logs.capture import Capture, install
from cog_trio.worker.model.load import load_models
from cog_trio.worker.model.tracebacks import last_line, trace
from cog_trio.worker.process.io_thread import IOThread
from cog_trio.worker.process.model_runtime import ModelRuntime
from cog_trio.worker.runs.prepare_inputs import guard_url_files
from cog_trio.worker.runs.slots import end_forked_child

SWITCH_INTERVAL: Final = 0.0005  # seconds that busy user code may keep the I/O thread from the GIL


def run(control_in: int, control_out: int, slot0: int, out_r: int, err_r: int) -> None:
    """From the first to the last: returns when the interpreter is to end."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    sys.argv = sys.argv[:1]  # models read it at import
    _keep_alive()
    gate.install(CancelationException)
    io = IOThread(control_in, control_out, slot0)
    atexit.register(io.stop)  # runs after capture's own handler, which runs after those of user code
    capture = install(io.control, out_r, err_r, io.drop_lines)
    capture.private.update((control_in, slot0))
    io.start(capture.pump)
    guard(gate, StrayExceptions(io).report)
    init = io.requests.get()
    if init is not None:
        _live_with(init, io, capture)


def _live_with(init: Init, io: IOThread, capture: Capture) -> None:
    try:
        tools = _load(init, io, capture)
        if init.describe:
            capture.barrier()
            return
        arrived = io.open_slots(tools, tools.models.main.concurrency)

        def ready() -> bool:
            if not arrived.get() or io.stopping:
                return False
            tools.open(io.slots)
            capture.private.update(slot.fd for slot in io.slots)
            capture.barrier()
            io.send(Ready(tuple(slot.index for slot in io.slots), tools.schema))
            gate.serving = True
            return True

        tools.executor.serve(tools.models.setups, ready)
    except BaseException as error:  # SystemExit too: setup has failed, and the parent is told
        if gate.serving:
            raise
        if gate.forked:
            end_forked_child(error)
        capture.service.write(LogSource.STDERR, trace(error))
        capture.barrier()
        io.send(Failed(last_line(error)))
    finally:
        gate.serving = False


def _load(init: Init, io: IOThread, capture: Capture) -> ModelRuntime:
    """Import the model and say what it is.

    Raises:
      BaseException: whatever the import of user code raises.
    """
    if init.protocol_version != PROTOCOL_VERSION:
        raise RuntimeError(
            f"the parent speaks protocol version {init.protocol_version}, this worker {PROTOCOL_VERSION}"
        )
    guard_url_files()
    models = load_models(
        init.predict_ref,
        init.train_ref,
        max_concurrency=init.max_concurrency,
        concurrency_from=init.concurrency_from,
    )
    if gate.forked:
        end_forked_child(None)
    model = models.main
    capture.slots = model.concurrency
    tools = ModelRuntime(models, capture, io)
    io.send(
        Described(
            schema=tools.schema,
            inputs=None if models.predict is None else models.predict.inputs,
            kind=model.kind,
            concurrency=model.concurrency,
            has_healthcheck=model.has_healthcheck,
            streaming=models.predict is not None and models.predict.streaming,
            versions={"python": platform.python_version(), "python_sdk": __version__},
            pid=os.getpid(),
            train_inputs=None if models.train is None else models.train.inputs,
            method=models.main.name,
            no_training=models.no_training,
        )
    )
    return tools


class StrayExceptions:
    """Tells of what signal handlers of the model raise while none of its code runs, not more than once a second."""

    def __init__(self, io: IOThread) -> None:
        self._io = io
        self._told = -math.inf

    def report(self, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._told >= 1:
            self._told = now
            text = f"a signal handler of the model raised {last_line(error)} while none of its code ran"
            self._io.send(WorkerLog(__name__, LogLevel.WARNING, text))


def _keep_alive() -> None:
    """Only the parent ends the worker: a signal to the whole group, or to us, does nothing.

    A handler, not SIG_IGN: that would be inherited by the programs that the model starts.
    """
    for signum in _POLITE:
        signal.signal(signum, _ignore)
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_be_mortal)


def _hold() -> None:
    """Keep a signal that is sent to a forked child at once until the child can die of it."""
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _POLITE)


def _let_go() -> None:
    if (mask := _masks.pop(threading.get_ident(), None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _be_mortal() -> None:
    for signum, default in _POLITE.items():
        if signal.getsignal(signum) is _ignore:
            signal.signal(signum, default)
    _let_go()


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Nothing."""


_masks: Final[dict[int, set[signal.Signals] | set[int]]] = {}  # by thread, from before its fork
_POLITE: Final[dict[int, Any]] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
