"""The two families of routes, predictions and trainings: one code path, told apart by what stands here.

A family runs its own callable only. Where the model has none, its creates answer 404 and ``/`` does not name it; reads
and cancels go by the id alone, since both families share one space of ids.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cog_trio.bridge.protocol import Mode


class RouteFamily(NamedTuple):
    """What one family is and says."""

    mode: Mode
    path: str
    streams: bool  # offered to clients where the model streams
    no_streaming: str
    id_mismatch: str

    @property
    def urls(self) -> dict[str, str]:
        """Its part of the discovery object."""
        name = self.path[1:]
        one = f"{self.path}/{{{name.removesuffix('s')}_id}}"
        return {f"{name}_url": self.path, f"{name}_idempotent_url": one, f"{name}_cancel_url": f"{one}/cancel"}


PREDICTIONS: Final = RouteFamily(
    Mode.PREDICT,
    "/predictions",
    streams=True,
    no_streaming="This model does not support streaming responses. Add @cog.streaming to {method}() to enable SSE.",
    id_mismatch="prediction ID must match the ID supplied in the URL",
)
TRAININGS: Final = RouteFamily(
    Mode.TRAIN,
    "/trainings",
    streams=False,
    no_streaming="Training endpoints do not support streaming responses.",
    id_mismatch="training ID must match the ID supplied in the URL",
)
FAMILIES: Final = (PREDICTIONS, TRAININGS)
