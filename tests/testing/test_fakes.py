"""The fake worker behaves as its behaviours are named, as seen by the orchestrator."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Outcome
from cog_trio.testing import fakes
from tests.bench import CUT, RETURNED, Flight, adopted, outcome_of


async def outcome_with(
    behaviour: fakes.Behaviour, *, cancel_after: float | None = None, **settings: Any
) -> tuple[Outcome, int]:
    """How a run ends with it, on one of two slots, and how many slots are left."""
    async with (
        fakes.open_fake_worker(behaviour, concurrency=2) as worker,
        adopted(worker, **settings) as bench,
        trio.open_nursery() as nursery,
    ):
        flight = Flight(bench, Prediction("p"))

        async def cancel() -> None:
            if cancel_after is not None:
                await trio.sleep(cancel_after)
                flight.prediction.cancel()

        nursery.start_soon(cancel)
        bench.take().start(flight.run)
        await flight.over.wait()
        assert flight.outcome is not None
        return flight.outcome, bench.orchestrator.capacity


@pytest.mark.parametrize(
    ("behaviour", "outcome", "slots", "seconds"),
    [
        (fakes.echo, RETURNED, 2, 0.0),
        (fakes.half_frame, outcome_of("Worker closed the socket of slot 0"), 1, 1.0),
        (fakes.eof, outcome_of("Worker closed the socket of slot 0"), 1, 1.0),
        (fakes.exit_9, outcome_of("Worker died: signal 9 (SIGKILL), possibly out of memory"), 2, 0.0),
    ],
)
async def test_a_behaviour_ends_a_run(
    autojump_clock: trio.testing.MockClock, behaviour: fakes.Behaviour, outcome: Outcome, slots: int, seconds: float
) -> None:
    assert await outcome_with(behaviour) == (outcome, slots)
    assert trio.current_time() == seconds


async def test_garbage_breaks_the_slot(autojump_clock: trio.testing.MockClock) -> None:
    outcome, slots = await outcome_with(fakes.garbage)
    assert (outcome.ours, slots) == (True, 1)


async def test_stall_ends_by_a_cancel(autojump_clock: trio.testing.MockClock) -> None:
    assert await outcome_with(fakes.stall, cancel_after=3.0) == (CUT, 2)
    assert trio.current_time() == 3.0


async def test_deaf_ends_with_its_worker(autojump_clock: trio.testing.MockClock) -> None:
    outcome, _ = await outcome_with(fakes.deaf, cancel_after=3.0, cancel_grace=50.0)
    assert outcome.ours
    assert trio.current_time() == 53.0
