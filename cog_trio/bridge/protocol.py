"""The messages that cross between parent and worker.

Two kinds of channel carry them: one control channel (JSON, one message a line) for what concerns the worker
as a whole, and one socket a slot (length-prefixed frames) for what concerns one run. Each direction of each
channel is one union of frozen tagged Structs; names and tags are the reference's.

A run is named by slot, id and run number (D19): every message that starts, cancels or ends a run carries all
three, so the order between the channels never matters. What comes between start and end on a slot socket
belongs to the run that is open there. Payloads that user code made travel as raw JSON and are never rebuilt.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NewType, TypeAlias

import msgspec

SlotId = NewType("SlotId", int)
"""Index of a slot in its worker, from 0."""
PredictionId = NewType("PredictionId", str)
Json: TypeAlias = Any
"""JSON that a user made: the one place where ``Any`` is right."""

PROTOCOL_VERSION: Final = 1
MAX_FRAME: Final = 8 * 2**20  # bytes of one frame body or control line; a larger one breaks the channel
MAX_INLINE: Final = 6 * 2**20  # bytes; 2 MiB below the frame limit, room for the envelope; beyond it: spill file
MAX_LOG_LINE: Final = 4 * 2**20  # bytes of a user's line, the notice included (D25)
MAX_LOG_PIECE: Final = 2**20  # bytes of one log message after encoding
MAX_ERROR: Final = 64 * 2**10  # bytes of an error text
MAX_METRIC: Final = 2**20  # bytes of one metric's value; beyond it ValueError in user code
DOWNLOADS: Final = "inputs"  # in a run's folder: the files that the worker fetched for its inputs
TRUNCATED: Final = "[**** LOG LINE TRUNCATED AT 4 MiB ****]"


class LogSource(str, Enum):
    STDOUT = "stdout"
    STDERR = "stderr"


class MetricMode(str, Enum):
    REPLACE = "replace"
    INCREMENT = "increment"
    APPEND = "append"


class Mode(str, Enum):
    """Which callable of a model a run calls: each has its own routes, inputs and output."""

    PREDICT = "predict"
    TRAIN = "train"


class Kind(str, Enum):
    """How a model's callable is run."""

    SYNC = "sync"
    ASYNC = "async"  # on asyncio
    TRIO = "trio"


class FileOutputKind(str, Enum):
    FILE = "file_type"  # a file of the user's: uploaded or turned into a data URL
    OVERSIZED = "oversized"  # a JSON value over MAX_INLINE, spilled by the worker


class HealthcheckStatus(str, Enum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class LogLevel(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Input(msgspec.Struct, frozen=True):
    """One input of a model, as the edge needs it beside the OpenAPI document."""

    name: str
    kind: str  # str int float bool path file secret dict any union; of the elements when ``many``
    many: bool = False  # a list of that kind
    required: bool = False  # omitting it is a 422 (may differ from the document: W11)
    nullable: bool = False  # an explicit null is accepted (D1)
    inject_null: bool = False  # omitted: the input echo shows null


class Inputs(msgspec.Struct, frozen=True):
    """The field table of one callable."""

    component: str  # name of its schema in components.schemas: Input, TrainingInput
    fields: tuple[Input, ...] = ()
    extra: bool = False  # the callable takes **kwargs: unknown inputs pass


class ToWorker(msgspec.Struct, frozen=True, tag_field="type"):
    """Parent to worker, on the control channel."""


class Init(ToWorker, frozen=True, tag="init"):
    """The first message: which model, how many runs at once."""

    predict_ref: str | None = None
    train_ref: str | None = None
    max_concurrency: int | None = None  # None: what @concurrent says, else 1
    describe: bool = False  # stop after Described (D21)
    protocol_version: int = PROTOCOL_VERSION


class Cancel(ToWorker, frozen=True, tag="cancel"):
    """End one run, also one whose Predict is still on its way (D19)."""

    slot: SlotId
    id: PredictionId
    run: int


class Healthcheck(ToWorker, frozen=True, tag="healthcheck"):
    id: str


class Shutdown(ToWorker, frozen=True, tag="shutdown"):
    """Leave through the normal interpreter exit (D30); runs in flight are the parent's to cancel first."""


ControlRequest: TypeAlias = Init | Cancel | Healthcheck | Shutdown


class FromWorker(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Worker to parent, on the control channel."""


class Described(FromWorker, frozen=True, tag="described"):
    """The model is imported and understood; sent before setup (D21)."""

    schema: msgspec.Raw  # the OpenAPI document
    inputs: Inputs | None  # of the predict callable; None: train only
    kind: Kind  # of the predict callable; train only: of that
    concurrency: int  # slots; the parent sends sockets for all but slot 0 now
    has_healthcheck: bool
    streaming: bool  # @streaming: SSE is offered
    versions: dict[str, str]  # python, python_sdk
    pid: int
    train_inputs: Inputs | None = None  # of the train callable; None: there is none


class Ready(FromWorker, frozen=True, tag="ready"):
    """setup() has returned and its whole log is out."""

    slots: tuple[SlotId, ...]
    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Log(FromWorker, frozen=True, tag="log"):
    """Text of user code that belongs to no run: setup, before Ready; later the service log.

    ``id`` names the finished prediction that it came from, when that is known.
    """

    source: LogSource
    data: str
    id: PredictionId | None = None


class WorkerLog(FromWorker, frozen=True, tag="worker_log"):
    """A message of the worker's runtime itself."""

    target: str
    level: LogLevel
    message: str


class Idle(FromWorker, frozen=True, tag="idle"):
    """Proof that nothing of the run is left on the slot.

    It goes out in one write with the terminal frame, on the slot socket, when nothing is left to be done by then;
    on the control channel when files had to be taken or temporary inputs deleted first, and after Cancelled. As it
    names its run, either way proves the same (D19, D22), and the usual run costs one write and one wake less.
    """

    slot: SlotId
    id: PredictionId
    run: int


class Cancelled(FromWorker, frozen=True, tag="cancelled"):
    """The run was cut before any user code of it began; takes the place of the terminal frame. Idle follows."""

    slot: SlotId
    id: PredictionId
    run: int


class Failed(FromWorker, frozen=True, tag="failed"):
    """Before Ready: setup failed (``slot`` is absent). After it: the slot is unusable and its run has failed."""

    error: str
    slot: SlotId | None = None
    id: PredictionId | None = None
    run: int | None = None


class Fatal(FromWorker, frozen=True, tag="fatal"):
    """The worker can't go on; it ends after this."""

    reason: str


class DroppedLogs(FromWorker, frozen=True, tag="dropped_logs"):
    count: int
    interval_millis: int


class HealthcheckResult(FromWorker, frozen=True, tag="healthcheck_result"):
    id: str
    status: HealthcheckStatus
    error: str | None = None


class ShuttingDown(FromWorker, frozen=True, tag="shutting_down"):
    """The worker's answer to Shutdown: nothing more comes but logs."""


ControlResponse: TypeAlias = (
    Described
    | Ready
    | Log
    | WorkerLog
    | Idle
    | Cancelled
    | Failed
    | Fatal
    | DroppedLogs
    | HealthcheckResult
    | ShuttingDown
)


class ToSlot(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Parent to worker, on one slot socket."""


class Predict(ToSlot, frozen=True, tag="predict"):
    """Start a run. Exactly one of ``input`` and ``input_file`` is there.

    ``input_file`` holds ``{"input": ..., "context": ...}`` (D26); the worker deletes it at once after reading,
    also when it is corrupt. ``output_dir`` is a name: the worker creates the folder, mode 0700, at first need.
    """

    slot: SlotId
    id: PredictionId
    run: int
    output_dir: str
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input_file: str | msgspec.UnsetType = msgspec.UNSET
    context: dict[str, str] = {}
    mode: Mode = Mode.PREDICT  # one that Init named


class FilesTaken(ToSlot, frozen=True, tag="files_taken"):
    """All files of the run have been read: the worker may delete its inputs and say Idle (D22)."""

    slot: SlotId
    id: PredictionId
    run: int


SlotRequest: TypeAlias = Predict | FilesTaken


class Spilled(msgspec.Struct, frozen=True):
    """What stands in a Predict's ``input_file``."""

    input: msgspec.Raw
    context: dict[str, str] = {}


class FromSlot(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Worker to parent, on one slot socket."""


class ProtocolVersion(FromSlot, frozen=True, tag="protocol_version"):
    """The first frame of each slot; another version than ours fails setup."""

    version: int


class LogLine(FromSlot, frozen=True, tag="log_line"):
    """Text of the open run, in the order it was written; not always a whole line."""

    source: LogSource
    data: str


class Fetching(FromSlot, frozen=True, tag="fetching"):
    """How far the inputs from URLs have come: now and then, while that takes long, and once when all are there."""

    done: int  # bytes
    total: int | None = None  # None: not known (yet)


class OutputChunk(FromSlot, frozen=True, tag="output_chunk"):
    output: msgspec.Raw
    index: int  # place in the final output, files counted too (W50)
    files: int = 0  # this many FileOutputs of the same index follow at once: files inside this value (W51)


class FileKind(msgspec.Struct, frozen=True):
    """The reference sends the kind as an object, so we do."""

    type: FileOutputKind


class FileOutput(FromSlot, frozen=True, tag="file_output"):
    """A file that is an item of its own; with ``place`` one inside the item that came just before."""

    filename: str  # absolute
    kind: FileKind
    index: int
    mime_type: str | None = None
    files: int = 0  # of an oversized value: as in OutputChunk
    place: int | None = None  # byte of the item's JSON where a null stands for this file; they come in rising order


class Metric(FromSlot, frozen=True, tag="metric"):
    name: str
    value: msgspec.Raw  # null deletes
    mode: MetricMode


class Done(FromSlot, frozen=True, tag="done"):
    """The run returned; its outputs have gone before."""

    slot: SlotId
    id: PredictionId
    run: int
    predict_time: float  # seconds in user code
    is_stream: bool = False  # the output is an array, whatever the schema says


class RunFailed(FromSlot, frozen=True, tag="failed"):
    slot: SlotId
    id: PredictionId
    run: int
    error: str  # one line, Type: message


class RunCancelled(FromSlot, frozen=True, tag="cancelled"):
    slot: SlotId
    id: PredictionId
    run: int


Terminal: TypeAlias = Done | RunFailed | RunCancelled
RunFrame: TypeAlias = (
    ProtocolVersion | Fetching | LogLine | OutputChunk | FileOutput | Metric | Done | RunFailed | RunCancelled
)
SlotResponse: TypeAlias = RunFrame | Idle  # Idle rides with the terminal frame when nothing is left to be done
