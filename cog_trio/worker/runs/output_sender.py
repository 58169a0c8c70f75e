"""What a run returned or yielded, on its way to the slot's socket; and what is said about how it failed.

One value or many: lists, tuples and iterators go item by item, ``None`` alone is no item
at all, everything else is one. ``encode`` may run code of the user's and belongs inside ``gate.user_code``; ``frame``
does not.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from cog_trio.bridge.codec import encode_frame
from cog_trio.bridge.protocol import MAX_INLINE, FileKind, FileOutput, FileOutputKind, LogSource, OutputChunk
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.model.input_values import InputError
from cog_trio.worker.model.output_values import NOT_FINITE, Composed, FileItem, OutputEncoder
from cog_trio.worker.model.tracebacks import one_line, trace
from cog_trio.worker.runs.slots import Job

Encoded: TypeAlias = bytes | FileItem | Composed
"""One item as it travels."""
_SPILL: Final = FileKind(FileOutputKind.OVERSIZED)
_FILE: Final = FileKind(FileOutputKind.FILE)


def is_stream(result: object) -> bool:
    """Whether a result is made item by item: any iterator but open files, which are one value."""
    return hasattr(type(result), "__next__") and not hasattr(result, "read")


def is_async_stream(result: object) -> bool:
    return hasattr(type(result), "__anext__")


class OutputSender:
    """The outputs of one run as frames, in the order of their index; files count too (W50)."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = OutputEncoder(job.folder)
        self._index = 0  # of the next item
        self.is_stream = False

    def encode(self, value: Any, *, yielded: bool = False) -> Encoded:
        """One item as it travels; see ``values.Outputs.item`` for what it raises."""
        return self._values.item(value, self._index if self.is_stream else None, yielded=yielded)

    def try_encode(self, value: Any, *, yielded: bool) -> Encoded | BaseException:
        """The same in a thread: what it raises is given, so that no traceback shows the way through the thread."""
        try:
            return self.encode(value, yielded=yielded)
        except BaseException as error:  # noqa: BLE001  the caller raises it
            return error

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
        index = self._index
        self._index = index + 1
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
        self._job.slot.io_thread.leaving(self._job)
        if self._values.not_finite:
            self._post(NOT_FINITE + "\n")
        if fault is None:
            return None
        if isinstance(fault, InputError):
            return str(fault)
        self.note(fault)
        return type(fault).__name__ if self._job.cancelled else one_line(fault)

    def note(self, fault: BaseException) -> None:
        if not self._job.cancelled:
            self._post(trace(fault))

    def _post(self, text: str) -> None:
        with gate.runtime():
            self._job.run_log.post(LogSource.STDERR, text)
