"""The events of one prediction for a program that embeds the service: typed records, decoded values.

``PredictionStream`` is a subscription of stream.py, read one event at a time. What it takes at once is bounded
(``stream.BATCH``), so a reader that is slow slows the model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import trio

from cog_trio.bridge.json_value import decode_json
from cog_trio.bridge.protocol import Json, LogSource, MetricMode
from cog_trio.state.event_log import Boundary, Event, LogEvent, MetricEvent, Subscription
from cog_trio.state.prediction_errors import interruption

if TYPE_CHECKING:
    from cog_trio.state.prediction import Prediction


@dataclass(frozen=True)
class Start:
    """The model begins."""


@dataclass(frozen=True)
class Output:
    """It has yielded, or returned an item; ``index`` is the place in the final output."""

    index: int
    value: Json


@dataclass(frozen=True)
class Log:
    """It has printed; not always a whole line."""

    source: LogSource
    text: str


@dataclass(frozen=True)
class Metric:
    """It has recorded a metric; the value as recorded, before merging."""

    name: str
    value: Json
    mode: MetricMode


@dataclass(frozen=True)
class Lost:
    """So many events were dropped, because they were not read in time; the prediction keeps the outputs among them."""

    count: int


@dataclass(frozen=True)
class Completed:
    """The end: it has succeeded, failed or been cancelled. Its slot is free again."""

    prediction: Prediction


StreamEvent: TypeAlias = Start | Output | Log | Metric | Lost | Completed


class PredictionStream:
    """One prediction and its events; made by ``PredictionService.stream`` only."""

    def __init__(self, prediction: Prediction, subscription: Subscription) -> None:
        self.prediction = prediction
        self._subscription = subscription
        self._taken: deque[Event] = deque()

    def __aiter__(self) -> PredictionStream:
        return self

    async def __anext__(self) -> StreamEvent:
        """The next event; the last one is ``Completed``.

        Raises:
          WorkerDied, PredictionTimedOut, ServiceEnded, PredictionLost, Rejected: in place of ``Completed``, if the end
            is not the model's doing.

        Cancellation: nothing is lost.
        """
        if self._taken:
            await trio.lowlevel.checkpoint_if_cancelled()  # others had their turn before this batch, and have it after
        while not self._taken:
            if self._subscription.over:
                raise StopAsyncIteration
            await self._subscription.wait()
            if self._taken or self._subscription.over:
                continue  # another reader of ours was faster
            batch = self._subscription.read()
            self._taken.extend(batch.events)
            if batch.lost:
                return Lost(batch.lost)
        return self._show(self._taken.popleft())

    def _show(self, event: Event) -> StreamEvent:
        if isinstance(event, int):
            output: Json = self.prediction.outputs[event]
            return Output(event, decode_json(output))
        if isinstance(event, LogEvent):
            return Log(event.source, event.data)
        if isinstance(event, MetricEvent):
            return Metric(event.name, decode_json(event.value), event.mode)
        if event is Boundary.START:
            return Start()
        if (why := interruption(self.prediction)) is not None:
            raise why
        return Completed(self.prediction)
