"""What a run returned or yielded, on its way to the slot's socket; and what is said about how it failed.

One value or many: lists, tuples and iterators go item by item, ``None`` alone is not an item, everything else is
one. ``look_at`` and the methods of ``Items`` run code of the user's and belong inside ``gate.user_code``; ``frame``
and ``keep`` do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from cog_trio.bridge.codec import encode_frame
from cog_trio.bridge.protocol import MAX_INLINE, FileKind, FileOutput, FileOutputKind, LogSource, OutputChunk
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.model.input_values import InputError
from cog_trio.worker.model.output_values import NOT_FINITE, Composed, FileItem, OutputEncoder, is_file
from cog_trio.worker.model.tracebacks import last_line, trace
from cog_trio.worker.runs.slots import Job

Encoded: TypeAlias = bytes | FileItem | Composed
"""One item as it travels."""
_SPILL: Final = FileKind(FileOutputKind.OVERSIZED)
_FILE: Final = FileKind(FileOutputKind.FILE)


END: Final = object()
"""In place of an item: there is none left."""

DUE: Final = object()
"""In place of an item: those that were taken wait in the run's log, and are to be sent now."""

SMALL: Final = 8192  # bytes of an encoded item that may wait for others
_json: Final = msgspec.json.Encoder().encode


class Unencoded(NamedTuple):
    """An item that touches the disk, to be encoded where that holds up nobody."""

    encode: Callable[[], Encoded]


class Items:
    """A result that goes item by item.

    ``next`` and ``throw`` take small items until it is time to send them, and give ``DUE``, or ``END``, or an item that
    is not a small one, encoded. They and ``close`` are async functions where ``is_async``.
    """

    def __init__(self, outputs: OutputSender, result: Any, *, is_async: bool, awaits: bool) -> None:
        self.is_async: Final = is_async
        self.close: Callable[[], Any] | None = None
        self._yielded = not isinstance(result, (list, tuple))
        if self._yielded:
            self.close = getattr(result, "aclose" if is_async else "close", None)
        self._items: Any = result if self._yielded else iter(result)
        self._outputs = outputs
        self._awaits = awaits

    @property  # and no attribute: that would keep itself alive, and with it the run and all of its inputs
    def next(self) -> Callable[[], Any]:
        return self._anext if self.is_async else self._next

    @property
    def throw(self) -> Callable[[BaseException], Any]:
        return self._athrow if self.is_async else self._throw

    @property
    def can_throw(self) -> bool:
        """It is a generator that waits at a ``yield``."""
        items = self._items
        if inspect.isasyncgen(items):
            return items.ag_frame is not None and not items.ag_running
        return inspect.isgenerator(items) and items.gi_frame is not None and not items.gi_running

    def _take(self, item: Any) -> object:
        """Keep an item that may wait, and give None; else ``DUE``, or the item, encoded."""
        outputs = self._outputs
        data: Encoded | Unencoded
        if type(item) is str and item.isascii():
            data = _json(item)
        else:
            data = outputs.encode(item, yielded=self._yielded, in_thread=self._awaits)
        if type(data) is not bytes or len(data) > SMALL:
            return data
        index = outputs.next_index
        outputs.next_index = index + 1
        return None if outputs.hold(index, data) else DUE

    def _next(self) -> object:
        items, take = self._items, self._take
        while (item := next(items, END)) is not END:
            if (taken := take(item)) is not None:
                return taken
        return END

    def _throw(self, error: BaseException) -> object:
        try:
            item = self._items.throw(error)
        except StopIteration:
            return END
        return self._take(item) or self._next()

    async def _anext(self) -> object:
        anext, take = self._items.__anext__, self._take
        while True:
            try:
                item = await anext()
            except StopAsyncIteration:
                return END
            if (taken := take(item)) is not None:
                return taken

    async def _athrow(self, error: BaseException) -> object:
        try:
            item = await self._items.athrow(error)
        except StopAsyncIteration:
            return END
        return self._take(item) or await self._anext()


def _is_stream(result: object) -> bool:
    """Whether a result is made item by item: any iterator but open files, which are one value."""
    return hasattr(type(result), "__next__") and not hasattr(result, "read")


def _is_async_stream(result: object) -> bool:
    return hasattr(type(result), "__anext__")


class OutputSender:
    """The outputs of one run as frames, in the order of their index; files count too."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = OutputEncoder(job.folder)
        self.next_index = 0
        self.hold: Final = job.run_log.hold_item
        self.is_stream = False
        self._misfit: str | None = None  # the warning that the output is not what the annotation says

    def look_at(self, result: Any, *, awaits: bool) -> Items | Encoded | Unencoded:
        """What a run returned: items to be taken, or the one value.

        Args:
          awaits: async iterators are streams too, and files are left to a thread.
        """
        if result.__class__ in self._job.model.misfits:
            self._misfit = self._job.model.misfits[type(result)]
        is_async = awaits and _is_async_stream(result)
        if is_async or isinstance(result, (list, tuple)) or _is_stream(result):
            self.is_stream = True
            return Items(self, result, is_async=is_async, awaits=awaits)
        return self.encode(result, in_thread=awaits)

    def encode(self, value: Any, *, yielded: bool = False, in_thread: bool = False) -> Encoded | Unencoded:
        """One item as it travels; see ``OutputEncoder.item`` for what it raises."""
        index = self.next_index if self.is_stream else None
        if in_thread and is_file(value):
            return Unencoded(partial(self._values.item, value, index, yielded=yielded))
        return self._values.item(value, index, yielded=yielded)

    def keep(self, wire: Encoded) -> None:
        """Keep a result that is one value: it leaves with the terminal message.

        Raises:
          OSError: if it needs a file that can't be written.
        """
        if isinstance(wire, bytes) and len(wire) <= MAX_INLINE:
            self._job.output = msgspec.Raw(wire)
        else:
            self._job.last_frames = self.frame(wire)

    def frame(self, wire: Encoded) -> bytearray:
        """The frame of the next item, and those of the files inside it, which can't be parted from it.

        A value over ``MAX_INLINE`` goes into a file.

        Raises:
          OSError: if that can't be written.
        """
        index = self.next_index
        self.next_index = index + 1
        if isinstance(wire, bytes) and len(wire) <= MAX_INLINE:
            return encode_frame(OutputChunk(msgspec.Raw(wire), index))
        if isinstance(wire, FileItem):
            return encode_frame(FileOutput(wire.path, _FILE, index, wire.mime_type))
        data, files = wire if isinstance(wire, Composed) else (wire, ())
        if len(data) <= MAX_INLINE:
            frames = encode_frame(OutputChunk(msgspec.Raw(data), index, len(files)))
        else:
            frames = encode_frame(FileOutput(self._values.spill(data), _SPILL, index, files=len(files)))
        for place, file in files:
            frames += encode_frame(FileOutput(file.path, _FILE, index, file.mime_type, place=place))
        return frames

    def explain(self, fault: BaseException | None) -> str | None:
        """Put into the run's log what belongs there at its end; gives the text of the reply.

        A cancel explains a fault: no traceback then. To be called inside ``gate.user_code``, and guarded against what
        that raises: exceptions and streams of the user's are asked for their text.
        """
        self._job.leave()
        if self._values.not_finite:
            self._post(NOT_FINITE + "\n")
        if self._misfit is not None:
            self._post(self._misfit)
        if fault is None:
            return None
        if isinstance(fault, InputError):
            return str(fault)
        self.note(fault)
        return type(fault).__name__ if self._job.cancelled else last_line(fault)

    def note(self, fault: BaseException) -> None:
        if not self._job.cancelled:
            self._post(trace(fault))

    def _post(self, text: str) -> None:
        with gate.runtime():
            self._job.run_log.post(LogSource.STDERR, text)
