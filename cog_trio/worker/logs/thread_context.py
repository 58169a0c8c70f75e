"""Makes threads and thread pools carry the context of whoever started the work (W42).

``asyncio`` and ``trio`` tasks carry it by themselves; ``threading.Thread`` (before Python 3.14) and
``ThreadPoolExecutor`` don't. A thread gets the values of its starter set in its own context, so that what
``threading.excepthook`` prints for it belongs to the same run. A pool's job runs in its submitter's context,
while the pool's threads are born in an empty one: they live on and serve other runs.

Only public parts of the two classes are used: ``start`` and ``run``, ``submit``.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

_MARK: Final = "__cog_trio_carries_context__"


def carry() -> None:
    """Wrap both, once; a repeat does nothing."""
    start = threading.Thread.start
    if not hasattr(start, _MARK):
        threading.Thread.start = _wrap_start(start)  # type: ignore[method-assign, assignment]
    submit = ThreadPoolExecutor.submit
    if not hasattr(submit, _MARK):
        ThreadPoolExecutor.submit = _wrap_submit(submit)  # type: ignore[method-assign]


def _wrap_start(inner: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(inner)
    def start(self: threading.Thread) -> None:
        if getattr(self, "_context", None) is not None:  # Python 3.14: one that the caller chose
            return inner(self)
        own = vars(self)
        had, run = "run" in own, self.run
        values = list(contextvars.copy_context().items())

        def restore() -> None:
            if had:
                own["run"] = run
            else:
                own.pop("run", None)

        def run_in_context() -> None:
            restore()
            for variable, value in values:
                variable.set(value)
            values.clear()
            run()

        own["run"] = run_in_context
        try:
            return inner(self)
        except BaseException:
            restore()
            raise

    setattr(start, _MARK, True)
    return start


def _wrap_submit(inner: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(inner)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        context = contextvars.copy_context()
        return contextvars.Context().run(inner, self, context.run, fn, *args, **kwargs)

    setattr(submit, _MARK, True)
    return submit
