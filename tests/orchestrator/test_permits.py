"""The right to use a slot: each pair of state and fact, and no way from poisoned to idle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Idle, PredictionId, SlotId
from cog_trio.orchestrator.permits import NEXT, PermitMisused, PermitPoisoned, PermitPool, SlotFact, SlotState
from cog_trio.orchestrator.slot import Slot
from cog_trio.testing.fakes import FakeWorker, proof_of
from tests.bench import Bench, Flight, opened


def facts_of(slot: Slot, flight: Flight) -> dict[SlotFact, Callable[[], None]]:
    return {
        SlotFact.ACQUIRED: lambda: slot._step(SlotFact.ACQUIRED),
        SlotFact.RELEASED: slot.release,
        SlotFact.DISPATCHED: lambda: slot.start(flight.run),
        SlotFact.PROVEN: lambda: flight.run.into_idle(Idle(slot.number, flight.prediction.id, flight.run.number)),
        SlotFact.LOST: lambda: slot.poison("lost"),
    }


async def bring(bench: Bench, state: SlotState) -> tuple[Slot, Flight]:
    """A slot in this state."""
    flight = Flight(bench, bench.new_prediction())
    slot = bench.take()
    if state is SlotState.IDLE:
        slot.release()
    elif state is SlotState.IN_USE:
        slot.start(flight.run)
    elif state is SlotState.POISONED:
        slot.poison("before")
    assert slot.state is state
    return slot, flight


@pytest.mark.parametrize(("state", "fact"), list(product(SlotState, SlotFact)), ids=lambda value: value.name)
async def test_each_pair_steps_or_is_refused(state: SlotState, fact: SlotFact) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        slot, flight = await bring(bench, state)
        follows = NEXT[state].get(fact)
        available = bench.pool.available
        step = facts_of(slot, flight)[fact]
        if follows is None and (state, fact) != (SlotState.POISONED, SlotFact.RELEASED):
            with pytest.raises(PermitMisused):
                step()
            assert (slot.state, bench.pool.available) == (state, available)
        else:
            step()
            assert slot.state is (follows or state)
            back = fact in (SlotFact.RELEASED, SlotFact.PROVEN) and follows is not None
            assert bench.pool.available == available + back


def test_nothing_leads_back_from_poisoned() -> None:
    assert NEXT[SlotState.POISONED] == {}
    assert SlotState.IDLE not in {state for fact, state in NEXT[SlotState.IN_USE].items() if fact != SlotFact.PROVEN}


async def test_capacity_is_a_limit() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        assert {bench.take().number, bench.take().number} == {0, 1}
        assert (bench.orchestrator.capacity, bench.pool.available) == (2, 0)
        assert bench.pool.acquire() is None


def test_an_empty_pool_has_nothing_to_give() -> None:
    pool = PermitPool[Slot]()
    assert (pool.acquire(), pool.available) == (None, 0)


@pytest.mark.parametrize(("slot", "id", "run"), [(1, "p", 1), (0, "q", 1), (0, "p", 2)])
async def test_a_proof_of_another_run_is_refused_and_changes_nothing(slot: int, id: str, run: int) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        flight, _ = await bench.begin()
        with pytest.raises(PermitMisused):
            flight.run.into_idle(Idle(SlotId(slot), PredictionId(id), run))
        assert bench.pool.available == 1


async def test_a_proof_counts_once() -> None:
    async with opened() as bench:
        flight, predict = await bench.begin()
        bench.worker.finish(predict)
        await flight.over.wait()
        with pytest.raises(PermitMisused):
            flight.run.into_idle(proof_of(predict))
        assert bench.pool.available == 1


@pytest.mark.covers("http:W5")
async def test_W5_a_slot_on_which_nothing_was_started_is_its_own_proof() -> None:
    async with opened() as bench:
        slot = bench.take()
        slot.release()
        assert (slot.state, bench.pool.available) == (SlotState.IDLE, 1)


async def test_a_slot_that_is_lost_while_it_is_held_never_comes_back() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        slot = bench.take()
        bench.orchestrator.break_slot(slot, "bad frame")
        bench.orchestrator.break_slot(slot, "again")
        slot.release()
        assert bench.orchestrator.poisoned == (PermitPoisoned(slot.number, "bad frame"),)
        assert (bench.orchestrator.capacity, bench.pool.available) == (1, 1)


async def test_the_owner_of_the_pool_hears_of_each_slot_that_comes_back() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        seen: list[int] = []
        bench.pool._on_idle = lambda: seen.append(bench.pool.available)
        first, second = bench.take(), bench.take()
        first.release()
        assert seen == [1]
        bench.orchestrator.break_slot(second, "bad frame")
        second.release()
        assert seen == [1]


async def test_the_worker_with_the_most_idle_slots_gives_the_next() -> None:
    async with opened(FakeWorker(concurrency=3)) as many, opened(FakeWorker(concurrency=2)) as few:
        pool = PermitPool[Slot]()
        for bench in (few, many):
            bench.pool.withdraw(bench.orchestrator._idle)
            pool.add(bench.orchestrator._idle, bench is many)
        taken = [pool.acquire() for _ in range(5)]
        workers = [slot.worker for slot in taken if slot is not None]
        assert workers.count(many.orchestrator) == 3
        assert workers[0] is many.orchestrator
        pool.withdraw(many.orchestrator._idle)
        pool.withdraw(many.orchestrator._idle)
        assert pool.acquire() is None


def test_poisoned_has_two_fields_and_no_method() -> None:
    assert [name for name in vars(PermitPoisoned) if not name.startswith("__")] == []
    assert list(PermitPoisoned.__annotations__) == ["slot", "reason"]


async def test_taking_a_slot_is_one_step() -> None:
    async with opened() as bench:
        with trio.testing.assert_no_checkpoints():
            bench.take().release()
