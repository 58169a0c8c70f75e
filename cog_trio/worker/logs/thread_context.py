"""Makes threads and thread pools carry the run of whoever started the work.

``asyncio`` and ``trio`` tasks carry their context by themselves; ``threading.Thread`` (before Python 3.14) and
``ThreadPoolExecutor`` don't. Only the context variables that are named to ``carry`` are passed on: others are the
model's, to be inherited as in any Python program. ``decimal``, for one, keeps a mutable object in such a variable,
and a thread that shared it would change the precision of its starter.

A thread gets the values of its starter set in its own context, so that what ``threading.excepthook`` prints for it
belongs to the same run. A pool's job has the values of its submitter while it runs; the pool's threads are born
without any, since they live on and serve other runs.

Only public parts of the two classes are used: ``start`` and ``run``, ``submit``.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

_MARK: Final = "__cog_trio_carries_context__"
Variables: TypeAlias = "Sequence[ContextVar[Any]]"


def carry(variables: Variables) -> None:
    """Wrap both, once, to carry these variables, which have defaults; a repeat does nothing."""
    start = threading.Thread.start
    if not hasattr(start, _MARK):
        threading.Thread.start = _wrap_start(start, variables)  # type: ignore[method-assign, assignment]
    submit = ThreadPoolExecutor.submit
    if not hasattr(submit, _MARK):
        ThreadPoolExecutor.submit = _wrap_submit(submit, variables)  # type: ignore[method-assign]


def _wrap_start(inner: Callable[[threading.Thread], None], variables: Variables) -> Callable[[threading.Thread], None]:
    @functools.wraps(inner)
    def start(self: threading.Thread) -> None:
        if getattr(self, "_context", None) is not None:  # Python 3.14: one that the caller chose
            return inner(self)
        own = vars(self)
        had, run = "run" in own, self.run
        values = [variable.get() for variable in variables]

        def restore() -> None:
            if had:
                own["run"] = run
            else:
                own.pop("run", None)

        def run_in_context() -> None:
            restore()
            for variable, value in zip(variables, values, strict=True):
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


def _wrap_submit(inner: Callable[..., Future[Any]], variables: Variables) -> Callable[..., Future[Any]]:
    @functools.wraps(inner)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job = _PoolJob(variables, [variable.get() for variable in variables], fn)
        return contextvars.Context().run(inner, self, job, *args, **kwargs)

    setattr(submit, _MARK, True)
    return submit


class _PoolJob:
    """A pool's job, called with the values of its submitter."""

    __slots__ = ("_function", "_values", "_variables")

    def __init__(self, variables: Variables, values: list[Any], function: Callable[..., Any]) -> None:
        self._variables = variables
        self._values = values
        self._function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        tokens = [variable.set(value) for variable, value in zip(self._variables, self._values, strict=True)]
        try:
            return self._function(*args, **kwargs)
        finally:
            for token in tokens:
                token.var.reset(token)
