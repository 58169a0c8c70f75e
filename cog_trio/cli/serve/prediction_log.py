"""The lines of the log about predictions: when one starts, when it ends and how, and what it prints.

They come from the events of the service, so nothing is asked of the path that a prediction takes, and nobody listens
where the level leaves them out. ``log_output.py`` renders them, off the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import cog_trio
from cog_trio.bridge.protocol import Mode
from cog_trio.cli.log_output import PREDICTIONS

if TYPE_CHECKING:
    from cog_trio.bridge.protocol import LogSource
    from cog_trio.cli.log_output import LogHandler

log: Final = logging.getLogger(PREDICTIONS)
NOUN: Final = {Mode.PREDICT: "prediction", Mode.TRAIN: "training"}


class PredictionLog:
    """The lines of one service."""

    def __init__(self, handler: LogHandler) -> None:
        self._handler = handler
        self._runs = 0  # that the model has been given so far
        self.ended = 0

    def hear(self, event: cog_trio.ServiceEvent) -> None:
        """Write the line of an event, if it has one."""
        if isinstance(event, cog_trio.PredictionStarted):
            self._runs += 1
            log.info("%s started", NOUN[event.mode], extra={"id": event.id, "run": self._runs})
        elif isinstance(event, cog_trio.PredictionFinished):
            self.ended += 1
            ran = event.ran or 0.0
            fields = {
                "id": event.id,
                "outcome": event.status.value,
                "predict_seconds": round(ran, 6),
                "queue_seconds": round(event.seconds - ran, 6),
            }
            if event.error is None:
                log.info("%s %s", NOUN[event.mode], event.status.value, extra=fields)
            else:
                log.info("%s %s: %s", NOUN[event.mode], event.status.value, event.error, extra=fields)

    def printed(self, id: str, source: LogSource, data: str) -> None:
        """Write what a prediction prints."""
        self._handler.printed(id, source.value, data)


def log_predictions(service: cog_trio.PredictionService, handler: LogHandler) -> PredictionLog | None:
    """Log the predictions of a service from here on; None at a level where they have no lines."""
    prediction_log = PredictionLog(handler) if log.isEnabledFor(logging.INFO) else None
    prints = prediction_log is not None and service.settings.prediction_logs
    service.attach_log(prediction_log.printed if prediction_log and prints else None, lambda: handler.dropped)
    if prediction_log is not None:
        service.observe(prediction_log.hear)
    return prediction_log
