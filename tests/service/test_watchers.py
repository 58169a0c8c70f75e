"""Who keeps a run alive (D4): each way of creating, each way of leaving, the grace."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from cog_trio.service.watchers import Watchers
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Fact, Outcome

Clock = trio.testing.MockClock


def keeper(nursery: trio.Nursery, grace: float = 0.0) -> Watchers:
    return Watchers(grace, nursery.start_soon)


async def test_a_run_without_a_watcher_is_nobodys(nursery: trio.Nursery) -> None:
    prediction = Prediction("p")
    keep = keeper(nursery)
    with keep.watch(prediction), keep.follow(prediction, None):
        pass
    assert not prediction.cancel_requested


async def test_the_last_waiter_cancels(nursery: trio.Nursery) -> None:
    prediction = Prediction("p", NewPrediction(watched=True))
    keep = keeper(nursery, grace=5)
    with keep.watch(prediction):
        with keep.watch(prediction):
            pass
        assert not prediction.cancel_requested
    assert prediction.cancel_requested  # at once: the grace is for streams


async def test_followers_do_not_keep_what_a_waiter_created(nursery: trio.Nursery) -> None:
    prediction = Prediction("p", NewPrediction(watched=True))
    keep = keeper(nursery)
    with keep.follow(prediction, None):
        with keep.watch(prediction):
            pass
        assert prediction.cancel_requested


@pytest.mark.parametrize("last", ["waiter", "follower"])
async def test_what_a_stream_created_lives_as_long_as_anybody_is_there(nursery: trio.Nursery, last: str) -> None:
    prediction = Prediction("p", NewPrediction(watched=True, streamed=True))
    keep = keeper(nursery)
    follower = keep.follow(prediction, None)
    waiter = keep.watch(prediction)
    waiter.__enter__()
    if last == "waiter":
        follower.close()
        assert not prediction.cancel_requested
        waiter.__exit__(None, None, None)
    else:
        waiter.__exit__(None, None, None)
        assert prediction.event_log.followers == 1
        follower.close()
    assert prediction.cancel_requested


async def test_leaving_after_the_end_changes_nothing(nursery: trio.Nursery) -> None:
    prediction = Prediction("p", NewPrediction(watched=True, streamed=True))
    with keeper(nursery).follow(prediction, None):
        prediction.finish(Outcome(Fact.CUT))
    assert not prediction.cancel_requested


async def test_the_grace_runs_from_the_last_leaving(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    prediction = Prediction("p", NewPrediction(watched=True, streamed=True))
    keep = keeper(nursery, grace=5)
    for _ in range(3):
        with keep.follow(prediction, None):
            await trio.sleep(1)
        await trio.sleep(4)
        assert not prediction.cancel_requested
    assert len(nursery.child_tasks) <= 1
    await trio.sleep(0.9)
    assert not prediction.cancel_requested
    await trio.sleep(0.2)
    assert prediction.cancel_requested


async def test_who_comes_back_within_the_grace_keeps_it_for_as_long_as_he_stays(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    prediction = Prediction("p", NewPrediction(watched=True, streamed=True))
    keep = keeper(nursery, grace=5)
    keep.follow(prediction, None).close()
    await trio.sleep(4)
    with keep.follow(prediction, None):
        await trio.sleep(100)
        assert not prediction.cancel_requested
    await trio.sleep(5.1)
    assert prediction.cancel_requested


async def test_nothing_lingers_behind_the_end(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    prediction = Prediction("p", NewPrediction(watched=True, streamed=True))
    keep = keeper(nursery, grace=5)
    keep.follow(prediction, None).close()
    await trio.testing.wait_all_tasks_blocked()
    prediction.finish(Outcome(Fact.CUT))
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
    assert not prediction.cancel_requested
