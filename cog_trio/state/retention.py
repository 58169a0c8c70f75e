"""Finished predictions, kept for a while so that they can be read.

Bounded by count, by age and by bytes, whichever is least. When bytes run short the inputs go first, oldest
first, then whole predictions; one that alone is over the limit is not kept, and takes no other's place. Age is
looked at when something is added or asked for: nothing here needs a timer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import trio

from cog_trio.state.prediction import Prediction


@dataclass(slots=True)
class _RetainedEntry:
    prediction: Prediction
    until: float  # on the trio clock
    size: int  # bytes, as counted


class RetainedPredictions:
    """The last finished predictions by id; a later one of the same id takes the place of the earlier."""

    def __init__(self, *, count: int, age: float, size: int) -> None:
        self._count = count
        self._age = age  # seconds
        self._limit = size  # bytes
        self._kept: OrderedDict[str, _RetainedEntry] = OrderedDict()  # oldest first
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Prediction]:
        """Those that are kept, the oldest first."""
        self._expire(trio.current_time())
        return iter([kept.prediction for kept in self._kept.values()])

    def add(self, prediction: Prediction) -> None:
        """Keep a finished prediction, as far as there is room."""
        self.forget(prediction.id)
        if not self._count:
            return
        assert prediction.predict_time is not None
        now = prediction.created + prediction.predict_time
        size = prediction.size
        if size > self._limit:
            prediction.input = None
            if (size := prediction.size) > self._limit:
                return
        self._kept[prediction.id] = _RetainedEntry(prediction, now + self._age, size)
        self.size += size
        self._expire(now)
        if len(self._kept) > self._count:
            self._drop_oldest()
        if self.size > self._limit:
            self._shrink()

    def get(self, id: str) -> Prediction | None:
        self._expire(trio.current_time())
        kept = self._kept.get(id)
        return None if kept is None else kept.prediction

    def forget(self, id: str) -> None:
        """Drop the one of this id, when there is one: the id runs again."""
        if (kept := self._kept.pop(id, None)) is not None:
            self.size -= kept.size

    def _expire(self, now: float) -> None:
        while self._kept and next(iter(self._kept.values())).until <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        self.size -= kept.size

    def _shrink(self) -> None:
        for kept in self._kept.values():
            kept.prediction.input = None
            size = kept.prediction.size
            self.size += size - kept.size
            kept.size = size
            if self.size <= self._limit:
                return
        while self.size > self._limit:
            self._drop_oldest()
