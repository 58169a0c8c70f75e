"""Why a prediction is not created: one error a reason, each with its text for the client, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cog_trio.bridge.protocol import Mode
from cog_trio.state.health import HealthSnapshot, HealthState

STARTING: Final = "Setup has not finished yet. Wait until it has finished, or GET /health-check for status."
SHUTTING_DOWN: Final = "Server is shutting down"
STATES: Final[Mapping[HealthState, str]] = {
    HealthState.UNKNOWN: STARTING,
    HealthState.STARTING: STARTING,
    HealthState.READY: SHUTTING_DOWN,  # READY without a worker: it is being ended
    HealthState.SETUP_FAILED: "Setup has failed, predictions can't run: {cause}",
    HealthState.DEFUNCT: "The worker is gone, predictions can't run: {cause}",
}

ABSENT: Final[Mapping[Mode, str]] = {
    Mode.PREDICT: "This service has no run function: it was started for training alone",
    Mode.TRAIN: "This model has no train function; train in cog.yaml, or COG_TRAIN_TYPE_STUB, names one",
}


class Rejected(Exception):
    """A prediction is not created, nothing was started; ``text`` is for the client."""

    def __init__(self, id: str | None, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.id = id  # that the client gave


class NotReady(Rejected):
    """There is no worker that could run it, or the service is shutting down."""

    def __str__(self) -> str:
        return f"{self.text} In a program: await service.wait_ready()." if self.text == STARTING else self.text


class ShuttingDown(NotReady):
    """The service is shutting down."""


class SetupFailed(NotReady):
    """The model could not be set up; ``logs`` has what it printed, its traceback and the cause."""

    def __init__(self, id: str | None, text: str, logs: str) -> None:
        super().__init__(id, text)
        self.logs = logs


class NotOffered(Rejected):
    """The model has no function of this kind."""

    def __init__(self, id: str | None, absence: str) -> None:
        super().__init__(id, absence)


class AlreadyRunning(Rejected):
    """The id is in flight; that prediction is untouched."""

    def __init__(self, id: str | None) -> None:
        super().__init__(id, "A prediction with this id is already running")


class AtCapacity(Rejected):
    """No slot is free, and there is no room in the queue."""

    def __init__(self, id: str | None) -> None:
        super().__init__(id, "At capacity - all prediction slots busy")


class QueueTimedOut(Rejected):
    """No slot became free while it waited in the queue."""

    def __init__(self, id: str | None, seconds: float) -> None:
        super().__init__(id, f"No prediction slot became free within {seconds:g} s")


def not_ready(health: HealthSnapshot, id: str | None = None) -> NotReady:
    """The refusal for the state that the service is in."""
    if health.draining:
        return ShuttingDown(id, SHUTTING_DOWN)
    text = STATES[HealthState(health.status)].format(cause=health.cause)
    if health.status == HealthState.SETUP_FAILED:
        return SetupFailed(id, text, "" if health.setup is None else health.setup.logs)
    return ShuttingDown(id, text) if text == SHUTTING_DOWN else NotReady(id, text)
