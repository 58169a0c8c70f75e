"""Permits: each way out of the block, and no way from poisoned to idle."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import trio

from cog_trio.bridge.protocol import PredictionId, SlotId
from cog_trio.orchestrator.permits import NO_PROOF, PermitInUse, PermitMisused, PermitPoisoned, PermitPool, SlotIdle

ID = PredictionId("p")


def pool_of(count: int) -> PermitPool:
    return PermitPool(map(SlotId, range(count)))


def proof(permit: PermitInUse, run: int = 1) -> SlotIdle:
    return SlotIdle(permit.slot, ID, run)


def test_capacity_is_a_limit() -> None:
    pool = pool_of(2)
    permits = [pool.acquire_nowait(), pool.acquire_nowait()]
    assert {permit.slot for permit in permits} == {0, 1}
    assert (pool.capacity, pool.available) == (2, 0)
    with pytest.raises(trio.WouldBlock):
        pool.acquire_nowait()


def test_an_empty_pool_has_nothing_to_give() -> None:
    pool = PermitPool()
    assert (pool.capacity, pool.available) == (0, 0)
    with pytest.raises(trio.WouldBlock):
        pool.acquire_nowait()


@pytest.mark.covers("http:W5")
def test_W5_a_permit_that_was_never_dispatched_is_its_own_proof() -> None:
    pool = pool_of(1)
    with pytest.raises(RuntimeError), pool.acquire_nowait():
        raise RuntimeError
    assert (pool.capacity, pool.available) == (1, 1)


def test_idle_is_the_only_proof_once_dispatched() -> None:
    pool = pool_of(1)
    with pool.acquire_nowait() as permit:
        permit.dispatch(ID, 1)
        permit.into_idle(proof(permit))
        assert pool.available == 0, "it returns at the end of the block"
    assert (pool.capacity, pool.available) == (1, 1)


def test_leaving_without_proof_poisons() -> None:
    pool = pool_of(2)
    with pool.acquire_nowait() as permit:
        permit.dispatch(ID, 1)
    assert (pool.capacity, pool.available) == (1, 1)
    assert pool.statistics().poisoned == (PermitPoisoned(permit.slot, NO_PROOF),)


@pytest.mark.parametrize(("slot", "id", "run"), [(1, "p", 1), (0, "q", 1), (0, "p", 2)])
def test_a_proof_of_another_run_is_refused_and_changes_nothing(slot: int, id: str, run: int) -> None:
    pool = pool_of(1)
    with pool.acquire_nowait() as permit:
        permit.dispatch(ID, 1)
        with pytest.raises(PermitMisused):
            permit.into_idle(SlotIdle(SlotId(slot), PredictionId(id), run))
    assert pool.capacity == 0


def _dispatch(permit: PermitInUse, pool: PermitPool) -> None:
    permit.dispatch(ID, 1)


def _prove(permit: PermitInUse, pool: PermitPool) -> None:
    permit.into_idle(proof(permit))


def _poison(permit: PermitInUse, pool: PermitPool) -> None:
    pool.poison(permit.slot, "bad frame")


def _leave(permit: PermitInUse, pool: PermitPool) -> None:
    permit.__exit__(None, None, None)


STEPS: tuple[Callable[[PermitInUse, PermitPool], None], ...] = (_dispatch, _prove, _poison, _leave)


@pytest.mark.parametrize("steps", list(itertools.product(STEPS, repeat=4)))
def test_nothing_leads_back_from_poisoned(steps: tuple[Callable[[PermitInUse, PermitPool], None], ...]) -> None:
    """Every order of four steps: a poisoned slot stays lost, a dispatched one is idle only with proof, none is counted
    twice."""
    pool = pool_of(1)
    permit = pool.acquire_nowait()
    done: list[Callable[[PermitInUse, PermitPool], None]] = []
    poisoned = False
    for step in steps:
        try:
            step(permit, pool)
        except PermitMisused:
            continue
        done.append(step)
        poisoned = poisoned or step is _poison
        if step is _leave and _dispatch in done and _prove not in done:
            poisoned = True
        assert pool.is_poisoned(permit.slot) is poisoned
        assert pool.capacity == (0 if poisoned else 1)
        assert pool.available == (1 if _leave in done and not poisoned else 0)


def test_an_idle_slot_can_be_poisoned() -> None:
    pool = pool_of(2)
    pool.poison(SlotId(0), "failed")
    pool.poison(SlotId(0), "again")
    assert pool.statistics().poisoned == (PermitPoisoned(SlotId(0), "failed"),)
    assert (pool.capacity, pool.available) == (1, 1)
    assert pool.acquire_nowait().slot == 1
    with pytest.raises(trio.WouldBlock):
        pool.acquire_nowait()


def test_a_permit_is_left_and_dispatched_once() -> None:
    pool = pool_of(1)
    with pool.acquire_nowait() as permit:
        permit.dispatch(ID, 1)
        with pytest.raises(PermitMisused):
            permit.dispatch(ID, 2)
        permit.into_idle(proof(permit))
    with pytest.raises(PermitMisused), permit:
        pass
    with pytest.raises(PermitMisused):
        permit.dispatch(ID, 2)
    assert (pool.capacity, pool.available) == (1, 1)


def test_poisoned_has_two_fields_and_no_method() -> None:
    assert [name for name in vars(PermitPoisoned) if not name.startswith("__")] == []
    assert list(PermitPoisoned.__annotations__) == ["slot", "reason"]


def test_who_waits_for_slots_hears_of_each_that_comes_back() -> None:
    """And only when it can be taken: a poisoned one never comes back."""
    pool = pool_of(2)
    seen: list[int] = []
    pool.on_idle = lambda: seen.append(pool.available)
    first, second = pool.acquire_nowait(), pool.acquire_nowait()
    with first:
        assert seen == []
    assert seen == [1]
    with second:
        second.dispatch(ID, 1)
    assert seen == [1]
    with pool.acquire_nowait():
        pass
    assert seen == [1, 1]
