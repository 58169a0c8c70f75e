"""Signals that come at any moment of the end."""

from __future__ import annotations

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import STOP


@pytest.mark.parametrize("pause", [0.0005, 0.003])
async def test_signals_to_the_last_moment_change_nothing(serve_model: ServeModel, pause: float) -> None:
    """Given a server, when SIGTERM comes again and again until it is gone, then it leaves with 0."""
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            with trio.fail_after(STOP):
                while server.process.poll() is None:
                    server.process.terminate()
                    await trio.sleep(pause)
            assert server.process.returncode == 0
