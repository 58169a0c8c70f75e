"""One HTTP/1 reply: from ASGI's messages to the pieces that are written. No I/O.

The head waits for the first body. How a body is framed, and when the connection has to close after it, is as h11 does
it, down to the spelling; beside that HTTP/1.0 connections are kept if the client asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cog_trio.transport.http.protocol.http1_head import RequestHead, clock, has_close, render_head


class ResponseWriter:
    """What became of one request on the wire."""

    __slots__ = ("_bodiless", "_chunked", "_keeps", "_owed", "_request", "started", "waiting", "whole")

    def __init__(self, request: RequestHead) -> None:
        self._request = request
        self._keeps = not request.closes
        self._chunked = self._bodiless = False
        self._owed: int | None = None  # bytes that Content-Length promises
        self.started = False
        self.waiting: bytes | None = None  # the head, until it is written
        self.whole = False

    @property
    def keeps(self) -> bool:
        """Whether another request may follow on the connection."""
        return self._keeps and not self._owed

    def start(self, status: int, given: Iterable[tuple[bytes, bytes]], *, last: bool) -> None:
        """Make the head.

        Args:
          last: the connection can't be kept, whatever the headers say.

        Raises:
          ValueError, RuntimeError: if a header can't be sent; nothing has begun then.
        """
        request, keeps = self._request, self._keeps
        bodiless = request.method == "HEAD" or status in (204, 304)
        headers = [*given, (b"date", clock.date())]
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                keeps = keeps and not has_close(value)
            elif name == b"transfer-encoding":
                raise RuntimeError("how a body is framed is the server's")
        if last:
            headers.append((b"connection", b"close"))
            keeps = False
        chunked = length is None and status not in (204, 304) and request.version != "1.0"
        if chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        endless = length is None and not chunked and not bodiless  # only the end of the connection ends it
        if request.closes or endless:
            keeps = False
            headers = [header for header in headers if header[0] != b"connection"]
            headers.append((b"Connection", b"close"))
        elif request.version == "1.0" and keeps:
            headers.append((b"Connection", b"keep-alive"))
        self.waiting = render_head(status, headers)
        self._keeps = keeps
        self._bodiless = bodiless
        self._chunked = chunked and not self._bodiless
        self._owed = 0 if self._bodiless else length
        self.started = True

    def body(self, data: bytes, more: bool) -> list[bytes]:
        """A part of the body as it stands on the wire, after the head if that has not left.

        Raises:
          RuntimeError: if it is more than the head said.
        """
        pieces = []
        if data and not self._bodiless:
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            elif self._owed is not None:
                if len(data) > self._owed:
                    raise RuntimeError("the body is longer than its Content-Length")
                self._owed -= len(data)
            pieces.append(data)
        if self.waiting is not None:
            pieces.insert(0, self.waiting)
            self.waiting = None
        if not more:
            self.whole = True
            if self._chunked:
                pieces.append(b"0\r\n\r\n")
        return pieces
