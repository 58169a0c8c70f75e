"""Answers in the step that reads a request: what an app may offer beside its ASGI interface.

An ASGI app costs a turn of its task for each request. Requests that need no wait can be answered before that, by one
call, and those that wait for one thing only by one call later. The app decides for each request, and what it leaves is
served as ever. So both ways have to be one code in the app, of which this is the first branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from cog_trio.transport.http.protocol.http1_head import RequestHead


class Answer(NamedTuple):
    """A whole reply, to be written by one call; one in parts, whose body is too large for that, by a task."""

    status: int
    headers: Iterable[tuple[bytes, bytes]]
    body: bytes | Iterator[bytes]


class Pending:
    """A reply that comes later.

    The app returns it from ``answer_now``, and calls ``reply`` once, from whichever task. ``gone`` is called, at most
    once, if the client leaves before; it must not reply.
    """

    def __init__(self, gone: Callable[[], None]) -> None:
        self.open = True  # the client waits for the reply
        self._gone = gone
        self._write: Callable[[Answer], None] | None = None
        self._early: Answer | None = None  # it came in the step of ``answer_now``

    def reply(self, reply: Answer) -> None:
        """Write the reply: at once what the kernel takes, the rest by a task. Nothing if the client has gone."""
        if not self.open:
            return
        self.open = False
        if self._write is None:
            self._early = reply
        else:
            self._write(reply)

    def leave_to(self, write: Callable[[Answer], None]) -> None:
        """Have ``write`` called with the reply; the connection does that."""
        self._write = write
        if self._early is not None:
            write(self._early)

    def client_has_gone(self) -> None:
        if self.open:
            self.open = False
            self._gone()


AnswerNow: TypeAlias = "Callable[[RequestHead, bytes], Answer | Pending | None]"
"""What an app may offer beside its ASGI interface: the answer to a request whose body is whole, in one step.

It must not wait. ``None``: the request goes to the ASGI app; nothing must have happened until then.
"""
