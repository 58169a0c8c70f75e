"""`streaming`, `concurrent` and `trio`: marks on a function, which itself stays as it is.

The loader looks for the marks along ``__wrapped__``; `functools.wraps` copies them outwards as well. `trio` may
mark a class too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])

STREAMING: Final = "__cog_streaming__"
CONCURRENT: Final = "__cog_concurrent_max__"
TRIO: Final = "__cog_trio__"


@overload
def streaming(function: Function, /) -> Function: ...
@overload
def streaming() -> Callable[[Function], Function]: ...
def streaming(function: Any = None, /) -> Any:
    """Offer the model's output to clients as it is made (server-sent events)."""

    def mark(target: Function) -> Function:
        if not callable(target):
            raise TypeError("@streaming goes on a function")
        setattr(target, STREAMING, True)
        return target

    return mark if function is None else mark(function)


@overload
def concurrent(function: Function, /) -> Function: ...
@overload
def concurrent(*, max: int = 1) -> Callable[[Function], Function]: ...
def concurrent(function: Any = None, /, *, max: int = 1) -> Any:
    """Let up to ``max`` predictions of an async model run at once.

    Raises:
      TypeError: if ``max`` is not an int, or over 1 on a function that is neither a coroutine function nor an async
        generator function.
      ValueError: if ``max`` is below 1.
    """
    if isinstance(max, bool) or not isinstance(max, int):
        raise TypeError(f"@concurrent(max=...) takes an int, got {type(max).__name__}")
    if max < 1:
        raise ValueError(f"@concurrent(max=...) must be at least 1, got {max}")

    def mark(target: Function) -> Function:
        if not callable(target):
            raise TypeError("@concurrent takes its limit by name: @concurrent(max=4)")
        if max > 1 and not is_async(target):
            raise TypeError(f"@concurrent(max={max}) needs an async def function or an async generator")
        setattr(target, CONCURRENT, max)
        return target

    return mark if function is None else mark(function)


@overload
def trio(target: Function, /) -> Function: ...
@overload
def trio() -> Callable[[Function], Function]: ...
def trio(target: Any = None, /) -> Any:
    """Run an async model under trio instead of asyncio: on its function, its method, or its class.

    Raises:
      TypeError: on a function that is neither a coroutine function nor an async generator function.
    """

    def mark(target: Function) -> Function:
        if not callable(target):
            raise TypeError("@cog.trio goes on an async def function or on a class")
        if not inspect.isclass(target) and not is_async(target):
            name = getattr(target, "__name__", type(target).__name__)
            raise TypeError(f"@cog.trio needs an async def function or an async generator; {name}() is neither")
        setattr(target, TRIO, True)
        return target

    return mark if target is None else mark(target)


def is_async(function: Any) -> bool:
    """Whether calling ``function`` gives a coroutine or an async generator, or it wraps one that does."""
    inner = inspect.unwrap(function)
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (function, inner))


streaming.__module__ = concurrent.__module__ = trio.__module__ = "cog"
