"""What keeps a service going: limits, the queue, workers that come back, several workers."""

from __future__ import annotations

import trio

from scenarios.conftest import Serve
from scenarios.rig import SOON


async def test_a_prediction_over_its_time_limit_is_stopped(serve: Serve) -> None:
    """Given --predict-timeout, when a model sleeps longer, then the prediction fails with the limit's text, its
    clean-up was heard, the slot is free, and the next one succeeds in the same worker."""
    with trio.fail_after(60):
        async with serve("stuck.py", "--predict-timeout", "1") as server:
            worker = server.worker().pid
            began = trio.current_time()
            reply = (await server.predict({"how": "sleep"})).json()
            assert 1 <= trio.current_time() - began < SOON
            assert (reply["status"], reply["error"]) == ("failed", "Prediction timed out after 1 s")
            assert "cleaned up" in reply["logs"]
            assert (await server.predict({"how": "none"})).json()["output"] == ["end"]
            assert server.worker().pid == worker
