"""The messages that cross between parent and worker.

Two kinds of channel carry them: one control channel (JSON, one message a line) for what concerns the worker
as a whole, and one socket a slot (length-prefixed frames) for what concerns one run. Each direction of each
channel is one union of frozen tagged Structs; names and tags are the reference's.

A run is named by slot, id and run number: every message that starts, cancels or ends a run carries all three, so a
cancel that is meant for one run can't hit the next. A run begins and ends on its slot socket: Predict starts it, and
its terminal message, which carries the proof of idleness, is the last one about it. What comes between belongs to the
run that is open there. Payloads that user code made travel as raw JSON and are never rebuilt.
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

PROTOCOL_VERSION: Final = 2
MAX_FRAME: Final = 8 * 2**20  # bytes of one frame body or control line; a larger one breaks the channel
MAX_INLINE: Final = 6 * 2**20  # bytes; 2 MiB below the frame limit, room for the envelope; beyond it: spill file
MAX_LOG_LINE: Final = 4 * 2**20  # bytes of a user's line, the notice included
MAX_LOG_PIECE: Final = 2**20  # bytes of one log message after encoding
MAX_ERROR: Final = 64 * 2**10  # bytes of an error text
MAX_METRIC: Final = 2**20  # bytes of one metric's value; beyond it ValueError in user code
DOWNLOADS: Final = "inputs"  # in a run's folder: the files that the worker fetched for its inputs
TRUNCATED: Final = "[**** LOG LINE TRUNCATED AT 4 MiB ****]"


def logs_truncated(limit: int) -> str:
    """Return what stands where a text was cut; the limit in bytes."""
    size = f"{limit // 2**20} MiB" if limit and limit % 2**20 == 0 else f"{limit} BYTES"
    return f"[**** LOGS TRUNCATED AT {size} ****]"


class LogSource(str, Enum):
    STDOUT = "stdout"
    STDERR = "stderr"


class MetricMode(str, Enum):
    REPLACE = "replace"
    INCREMENT = "increment"
    APPEND = "append"


class Mode(str, Enum):
    """Which callable of a model a run calls: each has its own routes, inputs and output."""

    __hash__ = str.__hash__  # that of Enum is a call of Python, for each look into a table

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
    required: bool = False  # omitting it is a 422 (may differ from the document)
    nullable: bool = False  # an explicit null is accepted
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
    describe: bool = False  # stop after Described
    concurrency_from: str = "max_concurrency"  # how max_concurrency was set, for errors about it
    protocol_version: int = PROTOCOL_VERSION


class Cancel(ToWorker, frozen=True, tag="cancel"):
    """End one run, also one whose Predict is still on its way."""

    slot: SlotId
    id: PredictionId
    run: int


class Healthcheck(ToWorker, frozen=True, tag="healthcheck"):
    id: str


class DumpState(ToWorker, frozen=True, tag="dump_state"):
    """Tell by WorkerLog where the threads and tasks of the worker are."""


class Shutdown(ToWorker, frozen=True, tag="shutdown"):
    """Leave through the normal interpreter exit; runs in flight are the parent's to cancel first."""


ControlRequest: TypeAlias = Init | Cancel | Healthcheck | DumpState | Shutdown


class FromWorker(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Worker to parent, on the control channel."""


class Described(FromWorker, frozen=True, tag="described"):
    """The model is imported and understood; sent before setup."""

    schema: msgspec.Raw  # the OpenAPI document
    inputs: Inputs | None  # of the predict callable; None: train only
    kind: Kind  # of the predict callable; train only: of that
    concurrency: int  # slots; the parent sends sockets for all but slot 0 now
    has_healthcheck: bool
    streaming: bool  # @streaming: SSE is offered
    versions: dict[str, str]  # python, python_sdk
    pid: int
    train_inputs: Inputs | None = None  # of the train callable; None: there is none
    method: str = "predict"  # name of the predict callable, as its author wrote it
    no_training: str | None = None  # why the train callable that Init names is not served


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
    Described | Ready | Log | WorkerLog | Failed | Fatal | DroppedLogs | HealthcheckResult | ShuttingDown
)


class ToSlot(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Parent to worker, on one slot socket."""


class Predict(ToSlot, frozen=True, tag="predict"):
    """Start a run. Exactly one of ``input`` and ``input_file`` is there.

    ``input_file`` holds ``{"input": ..., "context": ...}``. ``output_dir`` is the name of the run's folder: the worker
    creates it, mode 0700, at first need, and says so at the end. The parent removes it, with all that is in it.
    """

    slot: SlotId
    id: PredictionId
    run: int
    output_dir: str
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input_file: str | msgspec.UnsetType = msgspec.UNSET
    context: dict[str, str] = {}
    mode: Mode = Mode.PREDICT  # one that Init named


SlotRequest: TypeAlias = Predict


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
    index: int  # place in the final output, files counted too
    files: int = 0  # this many FileOutputs of the same index follow at once: files inside this value


class OutputBatch(FromSlot, frozen=True, tag="output_batch"):
    """Items that were made in quick succession, none of them with files inside: as many OutputChunks."""

    index: int  # of the first
    count: int
    outputs: msgspec.Raw  # one JSON array


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


class Idle(msgspec.Struct, frozen=True):
    """Proof that the worker is done with a run: nothing of it is left on the slot, and nothing more comes of it."""

    slot: SlotId
    id: PredictionId
    run: int


class Ended(FromSlot, frozen=True):
    """The last message of a run. It carries the proof, so the slot's next Predict may follow at once."""

    idle: Idle
    folder: bool = False  # the worker has made the run's folder; the parent removes it


class Done(Ended, frozen=True, tag="done"):
    """The run returned. A result that is one value comes along; a stream's items have gone before."""

    predict_time: float = 0.0  # seconds in user code
    is_stream: bool = False  # the output is an array, whatever the schema says
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # of a run that has put out nothing before


class RunFailed(Ended, frozen=True, tag="failed"):
    error: str = ""  # one line, Type: message


class RunCancelled(Ended, frozen=True, tag="cancelled"):
    """The run was cut, before user code of it began or while it ran."""


Terminal: TypeAlias = Done | RunFailed | RunCancelled
RunFrame: TypeAlias = Fetching | LogLine | OutputChunk | OutputBatch | FileOutput | Metric | Terminal
SlotResponse: TypeAlias = ProtocolVersion | RunFrame
