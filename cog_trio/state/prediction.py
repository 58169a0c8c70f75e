"""One prediction: its life as a table, what it has produced so far, and the one way to show it.

Its life cycle is the table in status.py. A prediction does no I/O and starts nothing. The worker's messages are
applied to it by the orchestrator, synchronously; the terminal step is the service's alone, after the slot is free
again, and only it wakes those who wait. Its cancellation token is the cancel scope that it stands in: that of the task
which waits on its behalf, later that of its slot's task. ``cancel`` is synchronous and repeatable, and a cancellation
between two scopes is seen by the next one.

Outputs stay the worker's own bytes (``msgspec.Raw``): one list of them is the single copy, spliced into every
reply. A place can be reserved for a file that is still being read, so that the order is the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import msgspec
import trio

from cog_trio.bridge.json_value import decode_json
from cog_trio.bridge.protocol import Json, LogSource, MetricMode, PredictionId
from cog_trio.state.bounded_text import BoundedText
from cog_trio.state.event_log import CAPACITY, EventLog, Observer
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.metric_merge import Unfit, aggregate
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction_errors import failure
from cog_trio.state.raw_json import LARGE, MARK, Packed, Pieces, pack, splice
from cog_trio.state.snapshot import Snapshot, encode
from cog_trio.state.status import NEXT, TERMINAL, Blame, Fact, IllegalTransition, Outcome, Status

_DEFAULTS: Final = NewPrediction()


class Bounds(NamedTuple):
    """How much of a prediction is kept."""

    logs: int = 32 * 2**20  # bytes
    events: int = CAPACITY


BOUNDS: Final = Bounds()
FORGOTTEN: Final = msgspec.Raw(b"null")  # stands for an item that was freed


def utcnow() -> datetime:
    return datetime.now(timezone.utc)


class Prediction:
    """One prediction; made by the service only.

    Args:
      new: what was asked for.
      input: what is shown of the input, secrets masked; that of ``new`` unless given.
      run: names this run in event ids, unlike any other run that a client may remember.
    """

    __slots__ = (
        "_completed_at",
        "_created_at",
        "_error",
        "_finished",
        "_forgets",
        "_is_array",
        "_logs",
        "_metrics",
        "_now",
        "_on_decision",
        "_on_finish",
        "_outputs",
        "_packed",
        "_pending",
        "_scope",
        "_shown",
        "_started_at",
        "blame",
        "cancel_requested",
        "created",
        "event_log",
        "events",
        "fetched",
        "id",
        "input",
        "mode",
        "on_printed",
        "output_size",
        "predict_time",
        "queued",
        "refusal",
        "started",
        "status",
        "streamed",
        "trace",
        "waits_briefly",
        "watched",
        "watchers",
        "webhook",
    )

    def __init__(
        self,
        id: str,
        new: NewPrediction = _DEFAULTS,
        *,
        input: bytes | memoryview | None = None,
        output_is_array: bool = False,
        run: str = "1",
        bounds: Bounds = BOUNDS,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self.id = PredictionId(id)
        self.input: bytes | memoryview | None = (
            new.input if input is None else input
        )  # None once it was dropped to save memory
        self.status = Status.STARTING
        self.cancel_requested = False
        self.watched = new.watched or new.streamed
        self.watchers = 0
        self.streamed = new.streamed
        self.event_log = EventLog(run, bounds.events, slows=new.streamed)
        self.mode = new.mode  # a prediction in the narrow sense, or a training
        self.webhook = new.webhook
        self.events = new.events
        self.trace = new.trace
        self.fetched: tuple[int, int | None] | None = None  # bytes of its inputs that have come, and of all if known
        self.predict_time: float | None = None  # seconds from acceptance to the terminal step, fixed there
        self.queued = False  # it waits for a slot
        self.waits_briefly = False  # it was created while its slot was being freed, and is refused if it is not
        self.refusal: Exception | None = None  # why it has ended without having begun
        self.blame = Blame.MODEL  # whose doing its end is; before it: of a cancellation that is under way
        self.output_size = 0  # bytes
        self._scope: trio.CancelScope | None = None  # that it stands in now: what ``cancel`` cancels
        self.on_printed: Callable[[str, LogSource, str], None] | None = None  # the service log, if it wants its text
        self._is_array = output_is_array
        self._outputs: list[msgspec.Raw | None] = []  # None: a file is being read; nothing behind it is shown
        self._packed: Packed | None = None  # takes their place when it is over, if they are many and small
        self._forgets = False  # items were freed: it is kept for nobody
        self._pending = 0
        self._shown = 0  # outputs that are events already: those before the first pending one
        self._logs = BoundedText(bounds.logs)
        self._metrics: dict[str, Json] = {}
        self._error: str | None = None
        self._finished: trio.Event | None = None  # made by the first who waits
        self._on_finish: list[Callable[[Prediction], None]] = []
        self._on_decision: list[Callable[[Prediction], None]] = []
        self._now = now
        self.created = trio.current_time()
        self._created_at = now()
        self.started: float | None = None  # on the trio clock
        self._started_at: datetime | None = None
        self._completed_at: datetime | None = None

    def __repr__(self) -> str:
        return f"<Prediction {self.id!r} {self.status.value}>"

    # What happens to it.

    def _step(self, fact: Fact) -> None:
        try:
            self.status = NEXT[self.status][fact]
        except KeyError:
            raise IllegalTransition(f"a prediction that is {self.status.value} can't be {fact.value}") from None

    def enter(self, scope: trio.CancelScope) -> None:
        """It stands in this cancel scope from now on: its cancellation token. One that is cancelled already cuts it."""
        self._scope = scope
        if self.cancel_requested:
            scope.cancel()

    def dispatched(self) -> None:
        """Its Predict is about to be written.

        Raises:
          IllegalTransition: unless it is starting.
        """
        self._step(Fact.DISPATCHED)
        if self._on_decision:
            self._decide()
        self.started = trio.current_time()
        self._started_at = self._now()
        self.event_log.start()

    def finish(self, outcome: Outcome) -> None:
        """Take the terminal step, fix its time, reply, wake everybody who waits.

        Raises:
          IllegalTransition: if the table refuses; nothing has changed then.
        """
        self._step(outcome.fact)
        self._scope = None
        self.predict_time = trio.current_time() - self.created
        self._completed_at = self._now()
        self._is_array = self._is_array or outcome.is_stream
        self.refusal = outcome.refusal
        self.blame = outcome.blame if outcome.ours else self.blame
        if self.status is Status.FAILED:
            self._error = outcome.error or "Error: "
        if self._pending:
            self._outputs = [output for output in self._outputs if output is not None]
            self._pending = 0
            self._show()
        if not self._forgets and (packed := pack(self._outputs, self.output_size)) is not None:
            self._packed, self._outputs = packed, []
        if self._on_decision:
            self._decide()
        callbacks, self._on_finish = self._on_finish, []  # it is kept: what waited for it, which knows it, is not
        for callback in callbacks:
            with contain(Where.REQUEST, id=self.id):
                callback(self)
        self.event_log.end()
        if self._finished is not None:
            self._finished.set()

    def append_log(self, data: str, source: LogSource = LogSource.STDERR) -> None:
        """Add text of the model, in the order it was written."""
        self._refuse_after_end("log text")
        self._log(data, source)

    def _log(self, data: str, source: LogSource = LogSource.STDERR) -> None:
        if kept := self._logs.append(data):
            self.event_log.log(source, kept)
        if self.on_printed is not None:
            self.on_printed(self.id, source, data)

    def add_output(self, output: msgspec.Raw) -> None:
        """Add the item at ``next_index``."""
        self._refuse_after_end("an output")
        self._outputs.append(output)
        size = len(memoryview(output))
        self.output_size += size
        if not self._pending:
            self.event_log.output(self._shown, size)
            self._shown += 1

    def add_outputs(self, outputs: list[msgspec.Raw]) -> None:
        """Add the items from ``next_index`` on, none of which has a file inside."""
        if self._pending or self._forgets:
            for output in outputs:
                self.add_output(output)
            return
        self._refuse_after_end("an output")
        sizes = [len(memoryview(output)) for output in outputs]
        self._outputs += outputs
        self.output_size += sum(sizes)
        self.event_log.outputs(self._shown, sizes)
        self._shown += len(sizes)

    def reserve_output(self) -> int:
        """Keep the place at ``next_index`` for a file that is being read; gives its index."""
        self._refuse_after_end("an output")
        self._outputs.append(None)
        self._pending += 1
        return len(self._outputs) - 1

    def fill_output(self, index: int, output: msgspec.Raw) -> None:
        """Put the content of a file in its reserved place."""
        self._refuse_after_end("an output")
        if self._outputs[index] is not None:
            raise IllegalTransition(f"output {index} has been filled already")
        self._outputs[index] = output
        self._pending -= 1
        self.output_size += len(memoryview(output))
        self._show()

    def _show(self) -> None:
        """Make events of the outputs up to the first pending one: their order is the model's."""
        while self._shown < len(self._outputs) and (output := self._outputs[self._shown]) is not None:
            self.event_log.output(self._shown, len(memoryview(output)))
            self._shown += 1

    def forget_outputs(self, first: int, end: int) -> None:
        """Free the items from ``first`` up to ``end``: their only reader has taken them. They are null from then on."""
        self._forgets = True
        for index in range(first, end):
            if (output := self._outputs[index]) is not None:
                self.output_size -= len(memoryview(output)) - len(memoryview(FORGOTTEN))
                self._outputs[index] = FORGOTTEN

    def record_metric(self, name: str, value: msgspec.Raw, mode: MetricMode) -> None:
        """Merge one recorded metric; one that JSON can't carry on is told in the logs."""
        self._refuse_after_end("a metric")
        try:
            aggregate(self._metrics, name, decode_json(value), mode)
        except (Unfit, msgspec.DecodeError, RecursionError) as error:
            self._log(f"[cog_trio] the metric {name} was dropped: {error}\n")
        else:
            self.event_log.metric(name, value, mode)

    def _refuse_after_end(self, what: str) -> None:
        if self.status in TERMINAL:
            raise IllegalTransition(f"{what} came to a prediction that is {self.status.value}")

    # Who acts on it, who waits.

    def cancel(self, blame: Blame = Blame.MODEL) -> None:
        """Ask for its end. It has stopped when it is terminal. Repeats and late calls change nothing."""
        if self.cancel_requested or self.terminal:
            return
        self.blame = blame
        self.cancel_requested = True
        if self._scope is not None:
            self._scope.cancel()

    def on_decision(self, callback: Callable[[Prediction], None]) -> None:
        """Call this when it begins, or has ended without that; at once, if it is so."""
        if self.status is Status.STARTING:
            self._on_decision.append(callback)
        else:
            callback(self)

    async def wait_decided(self) -> None:
        """Wait until it begins, or has ended without that. Cancellation: the prediction goes on."""
        decided = trio.Event()
        self.on_decision(lambda _: decided.set())
        await decided.wait()

    def _decide(self) -> None:
        callbacks, self._on_decision = self._on_decision, []
        for callback in callbacks:
            with contain(Where.REQUEST, id=self.id):
                callback(self)

    def on_finish(self, callback: Callable[[Prediction], None]) -> None:
        """Call this in the terminal step, before anybody who waits goes on; at once, if that has been taken."""
        if self.terminal:
            callback(self)
        else:
            self._on_finish.append(callback)

    async def wait_finished(self) -> None:
        """Wait for the terminal state. Cancellation: the prediction goes on."""
        if self._finished is None:
            self._finished = trio.Event()
            if self.terminal:
                self._finished.set()
        await self._finished.wait()

    def observe(self) -> Observer:
        """See each kind of change from here on; what has changed is in the snapshot."""
        return self.event_log.observe()

    # What it shows.

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def error(self) -> str | None:
        return self._error

    @property
    def logs(self) -> str:
        return self._logs.text

    @property
    def dropped_logs(self) -> tuple[int, int]:
        """Lines and bytes of log text beyond the limit."""
        return self._logs.dropped_lines, self._logs.dropped

    @property
    def next_index(self) -> int:
        return len(self.outputs)

    @property
    def metrics(self) -> dict[str, Json]:
        """User metrics, and ``predict_time`` (which wins) from the terminal step on."""
        if self.predict_time is None:
            return self._metrics
        return {**self._metrics, "predict_time": self.predict_time}

    @property
    def output(self) -> Json:
        """The output decoded, for embedders; ``None`` when there is none."""
        shown = self._output(self.status)
        return None if shown is msgspec.UNSET else decode_json(encode(shown))

    def result(self) -> Json:
        """The output decoded, of one that has succeeded.

        Raises:
          PredictionFailed, PredictionCanceled: what the model did instead; the prediction is on it.
          WorkerDied, PredictionTimedOut, ServiceEnded, PredictionLost, Rejected: what came between.
          trio.WouldBlock: if it has not ended yet.
        """
        if not self.terminal:
            raise trio.WouldBlock
        if (why := self.failure) is not None:
            raise why
        return self.output

    @property
    def failure(self) -> Exception | None:
        """What ``result`` raises; ``None`` if it has succeeded, or not ended."""
        return failure(self) if self.terminal else None

    @property
    def created_at(self) -> datetime:
        return self._created_at

    @property
    def started_at(self) -> datetime | None:
        """When it was sent to the worker; ``None`` before."""
        return self._started_at

    @property
    def completed_at(self) -> datetime | None:
        return self._completed_at

    @property
    def size(self) -> int:
        """Bytes that keeping it costs: all of its fields that may be long."""
        texts = len(self._error or "") + len(self.webhook or "")
        trace = sum(len(name) + len(value) for name, value in self.trace) if self.trace else 0
        metrics = len(encode(self._metrics)) if self._metrics else 0
        kept = self.output_size + self._logs.size + self.event_log.held + len(self.input or b"")
        return kept + texts + trace + metrics

    @property
    def outputs(self) -> Sequence[msgspec.Raw | None]:
        """The items, each at its index; ``None``: a file that is still being read. Never copied."""
        return self._outputs if self._packed is None else self._packed

    def _output(self, status: Status) -> msgspec.Raw | list[msgspec.Raw] | msgspec.UnsetType | None:
        if self._packed is not None:
            return self._packed.array
        items: list[Any] = self._outputs[: self._outputs.index(None)] if self._pending else self._outputs
        if not items and not (status is Status.SUCCEEDED and self._is_array):
            return None if status is Status.SUCCEEDED else msgspec.UNSET
        return items if self._is_array or len(items) > 1 else items[0]

    def snapshot(self, with_input: bool = False, *, running: bool = False) -> bytes:
        """It as JSON: what replies, polls and webhooks show. ``running``: as it was before its end, if it has ended."""
        return b"".join(self.pieces(with_input, running=running))

    def pieces(self, with_input: bool = False, *, running: bool = False) -> Pieces:
        """The snapshot in pieces, large outputs not copied: for one who can send it so."""
        unset = msgspec.UNSET
        status, metrics, error, completed_at = self.status, self.metrics, self._error, self._completed_at
        if running and self.terminal:
            status, metrics, error, completed_at = Status.PROCESSING, self._metrics, None, None
        output = self._output(status)
        large = output if isinstance(output, (msgspec.Raw, list)) and self.output_size > LARGE else None
        data = encode(
            Snapshot(
                id=self.id,
                status=status,
                logs=self._logs.text,
                metrics=metrics,
                created_at=self._created_at.isoformat(),
                started_at=unset if self._started_at is None else self._started_at.isoformat(),
                completed_at=unset if completed_at is None else completed_at.isoformat(),
                output=output if large is None else MARK,
                error=unset if error is None else error,
                input=msgspec.Raw(self.input) if with_input and self.input is not None else unset,
            )
        )
        return (data,) if large is None else splice(data, large)

    def announcement(self) -> bytes:
        """It as JSON at the moment it began, whatever has happened since."""
        began = self._started_at or self._created_at
        return encode(
            Snapshot(
                id=self.id,
                status=Status.PROCESSING,
                logs="",
                metrics={},
                created_at=self._created_at.isoformat(),
                started_at=began.isoformat(),
            )
        )
