"""Why there is no result of a prediction that was created: one error a reason, with the prediction on it.

That the model failed, or was cancelled, is an outcome like another: ``PredictionService.predict`` gives such a
prediction as it is, and only ``Prediction.result`` raises. The other errors are not the model's doing: whoever waits
gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cog_trio.state.status import Blame, Status

if TYPE_CHECKING:
    from cog_trio.state.prediction import Prediction


class PredictionError(Exception):
    """A prediction has no result; ``prediction`` has its logs and what came of its output."""

    def __init__(self, prediction: Prediction) -> None:
        super().__init__(prediction.error or f"prediction {prediction.id} was canceled")
        self.prediction = prediction


class PredictionFailed(PredictionError):
    """The model raised; the text is its error."""


class PredictionCanceled(PredictionError):
    """It was cancelled by somebody."""


class WorkerDied(PredictionError):
    """The worker died, was killed or became unusable while the prediction ran."""


class PredictionTimedOut(PredictionError):
    """It was stopped at ``Settings.predict_timeout``."""


class PredictionLost(PredictionError):
    """The service could not run it; the text says why, such as a full disk."""


class ServiceEnded(PredictionError):
    """The service was shut down while it ran."""


ERRORS: Final[Mapping[Blame, type[PredictionError]]] = {
    Blame.WORKER: WorkerDied,
    Blame.LIMIT: PredictionTimedOut,
    Blame.SERVICE: PredictionLost,
    Blame.SERVICE_END: ServiceEnded,
}


def interruption(prediction: Prediction) -> Exception | None:
    """Why a finished prediction came to nothing, if that is not the model's doing."""
    if prediction.status is Status.SUCCEEDED:
        return None
    if prediction.refusal is not None:
        return prediction.refusal
    error = ERRORS.get(prediction.blame)
    return None if error is None else error(prediction)


def failure(prediction: Prediction) -> Exception | None:
    """Why a finished prediction has no result."""
    if (why := interruption(prediction)) is not None or prediction.status is Status.SUCCEEDED:
        return why
    return PredictionFailed(prediction) if prediction.status is Status.FAILED else PredictionCanceled(prediction)
