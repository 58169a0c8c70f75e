"""A thread that decodes and checks large JSON, one body at a time.

One call into a decoder keeps the interpreter's lock to its end: 5 ms for each MB of numbers, 20 ms for each MB of small
objects. A thread lets the event loop run between two such calls. Two threads would not decode faster, since they need
the same lock, and the loop would wait for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import trio

T = TypeVar("T")

_limiter: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("decoding thread")


async def run_in_decoding_thread(function: Callable[..., T], *args: object, refusals: tuple[type[Exception], ...]) -> T:
    """Call a function that decodes or checks large JSON in a thread, when no other such call runs.

    Args:
      refusals: exceptions of the function that say all there is to know. They come without their tracebacks.

    Raises:
      Whatever the function raises.

    Cancellation: seen before the call begins and after it has ended.
    """
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(1)
        _limiter.set(limiter)
    returned = await trio.to_thread.run_sync(_call, function, args, refusals, limiter=limiter)
    if not isinstance(returned, _Raised):
        return returned
    try:
        raise returned.error
    finally:
        del returned  # this frame and the error would hold each other


class _Raised(NamedTuple):
    error: Exception


def _call(function: Callable[..., T], args: tuple[object, ...], refusals: tuple[type[Exception], ...]) -> T | _Raised:
    """Call the function, and return a refusal without its traceback.

    The frames of a traceback, and those that called them, are part of a cycle once it has left the thread. That would
    hold the arguments, as large as they are, until the garbage collector comes.
    """
    try:
        return function(*args)
    except refusals as error:
        error.__context__ = None
        return _Raised(error.with_traceback(None))
