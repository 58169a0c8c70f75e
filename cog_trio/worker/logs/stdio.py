"""What user code sees as ``sys.stdout`` and ``sys.stderr``: complete text streams that hand text to a router.

They do what a text stream on a descriptor does, with these differences: ``close`` and ``detach`` leave them
working, since handlers and progress bars keep them for the worker's life; lone surrogates are written by
backslashreplace; ``encoding`` stays UTF-8. ``buffer`` takes bytes and routes them like text.

Every method that sends runs inside ``gate.runtime()``: a cancel is raised before or after it, never in the middle. A
``write`` of text that only waits is one append to a queue, so a cancel in it is before or after that.
"""

from __future__ import annotations

import io
from typing import Any, Final, Protocol

from cog_trio.bridge.protocol import LogSource
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.logs.run_log import TextLog, current

ERRORS: Final = "backslashreplace"


class Router(Protocol):
    """Where text goes."""

    @property
    def only(self) -> TextLog | None:
        """The log of text that nobody claims, if it is a run's."""

    def write(self, source: LogSource, text: str | bytes) -> None: ...

    def flush(self, source: LogSource) -> None: ...


class RoutedStream(io.TextIOBase):
    """One of the two; ``router`` is another one in forked children."""

    mode: Final = "w"
    write_through: Final = False
    newlines: Final = None  # type: ignore[misc]
    encoding: Final = "utf-8"  # type: ignore[misc]
    errors: Final = ERRORS  # type: ignore[misc]

    def __init__(self, source: LogSource, fd: int, router: Router) -> None:
        self.router = router
        self.line_buffering = True
        self.name: Final = f"<{source.value}>"
        self.source: Final = source
        self._fd = fd
        self.buffer: Final = RoutedBuffer(self, fd)

    def write(self, text: str, /) -> int:
        if type(text) is not str:
            text = _plain(text)
        run_log = current.get() or self.router.only
        if run_log is None or not run_log.hold(self.source, text):
            with gate.runtime():
                self.router.write(self.source, text)
        return len(text)

    def flush(self) -> None:
        with gate.runtime():
            self.router.flush(self.source)

    def reconfigure(
        self,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        line_buffering: bool | None = None,
        write_through: bool | None = None,
    ) -> None:
        """Takes what a ``TextIOWrapper`` takes; text is UTF-8 and travels by the line whatever is asked."""
        if line_buffering is not None:
            self.line_buffering = bool(line_buffering)
        self.flush()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Flushes and stays open."""
        self.flush()

    def detach(self) -> RoutedBuffer:  # type: ignore[override]
        """The buffer; this stream goes on working."""
        self.flush()
        return self.buffer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} mode='w' encoding='utf-8'>"


class RoutedBuffer(io.BufferedIOBase):
    """The bytes side of a routed stream."""

    mode: Final = "wb"

    def __init__(self, stream: RoutedStream, fd: int) -> None:
        self._stream = stream
        self.name: Final = stream.name
        self._fd = fd

    @property
    def raw(self) -> RoutedBuffer:
        return self

    def write(self, data: Any, /) -> int:
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'")
        copy = bytes(memoryview(data).cast("B"))
        with gate.runtime():
            self._stream.router.write(self._stream.source, copy)
        return len(copy)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Flushes and stays open."""
        self._stream.flush()


def _plain(text: object) -> str:
    """Return the text of an instance of a subclass of str, whose own methods may do anything.

    Raises:
      TypeError: for anything but text, as any text stream does.
    """
    if not isinstance(text, str):
        raise TypeError(f"write() argument must be str, not {type(text).__name__}")
    return str.__str__(text)


def open_plain(fd: int) -> io.TextIOWrapper:
    """An ordinary text stream on a descriptor, by the line, which never closes it."""
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", ERRORS, line_buffering=True)


class PlainRouter:
    """Straight to descriptors 1 and 2: for forked children, whose text is captured by the pipes."""

    def __init__(self) -> None:
        self.only: Final = None
        self.stdout: Final = open_plain(1)
        self.stderr: Final = open_plain(2)

    def write(self, source: LogSource, text: str | bytes) -> None:
        stream = self._stream(source)
        if isinstance(text, str):
            stream.write(text)
        else:
            stream.flush()
            stream.buffer.write(text)
            stream.buffer.flush()

    def flush(self, source: LogSource) -> None:
        self._stream(source).flush()

    def _stream(self, source: LogSource) -> io.TextIOWrapper:
        return self.stdout if source is LogSource.STDOUT else self.stderr
