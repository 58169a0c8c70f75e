"""Who keeps a run alive.

A run that was created by a request that waits lives as long as somebody waits for it; one that was created by a
stream, also as long as somebody follows its events, and for a grace after that, so that a follower whose connection
broke can come back. One that was created without a watcher is nobody's: watching it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio

from cog_trio.state.event_log import Subscription
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.prediction import Prediction


def is_abandoned(prediction: Prediction) -> bool:
    """It was for somebody, who is gone, and nobody has taken the place."""
    if not prediction.watched or prediction.watchers or prediction.terminal:
        return False
    return not (prediction.streamed and prediction.event_log.followers)


class Watchers:
    """The rules of one service. ``grace``: seconds from the last follower's leaving to the cancellation."""

    def __init__(self, grace: float, start_soon: Callable[..., Any]) -> None:
        self._grace = grace
        self._start_soon = start_soon
        self._until: dict[Prediction, float] = {}  # when the grace ends for those whose last follower has left

    def join(self, prediction: Prediction) -> Callable[[], None]:
        """Be one of those who wait for a prediction, until the returned function is called; repeats change nothing."""
        prediction.watchers += 1
        waits = True

        def leave() -> None:
            nonlocal waits
            if waits:
                waits = False
                prediction.watchers -= 1
                self._left(prediction)

        return leave

    @contextmanager
    def watch(self, prediction: Prediction) -> Iterator[None]:
        """Be one of those who wait for a prediction."""
        leave = self.join(prediction)
        try:
            yield
        finally:
            leave()

    def follow(self, prediction: Prediction, after: str | None) -> Subscription:
        """Be one of those who follow a prediction's events. Raises: as ``History.follow``."""
        return prediction.event_log.follow(after, on_leave=partial(self._left, prediction))

    def creator_left(self, prediction: Prediction) -> None:
        """Who created it by a stream has left for good: there is no grace."""
        if is_abandoned(prediction):
            prediction.cancel()

    def _left(self, prediction: Prediction) -> None:
        if not is_abandoned(prediction):
            return
        if not (prediction.streamed and self._grace):
            prediction.cancel()
            return
        lingers = prediction in self._until
        self._until[prediction] = trio.current_time() + self._grace
        if not lingers:
            self._start_soon(self._linger, prediction)

    async def _linger(self, prediction: Prediction) -> None:
        """Cancel a run when nobody has come back in time, or when that can't be told."""
        with contain(Where.WATCHER, lambda _: prediction.cancel(), id=prediction.id):
            await self._wait_for_return(prediction)

    async def _wait_for_return(self, prediction: Prediction) -> None:
        try:
            while (left := self._until[prediction] - trio.current_time()) > 0 and not prediction.terminal:
                with trio.move_on_after(left):
                    await prediction.wait_finished()
        finally:
            del self._until[prediction]
        if is_abandoned(prediction):
            prediction.cancel()
