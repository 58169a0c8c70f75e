"""The tables of a worker process and of its place: each pair of state and fact."""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import Any

import pytest

from cog_trio.orchestrator.worker_life import (
    IN_SETUP,
    PLACE,
    PROCESS,
    TAKES_MESSAGES,
    IllegalStep,
    Life,
    PlaceFact,
    PlaceState,
    ProcessFact,
    ProcessState,
)

PAIRS = [
    *((PROCESS, state, fact) for state, fact in product(ProcessState, ProcessFact)),
    *((PLACE, state, fact) for state, fact in product(PlaceState, PlaceFact)),
]


@pytest.mark.parametrize(("table", "state", "fact"), PAIRS, ids=lambda value: getattr(value, "name", ""))
def test_each_pair_steps_or_is_refused(table: Any, state: Enum, fact: Enum) -> None:
    life: Life[Any, Any] = Life(table)
    life.state = state
    follows = table[state].get(fact)
    if follows is None:
        with pytest.raises(IllegalStep):
            life.step(fact)
        assert life.state is state
    else:
        life.step(fact)
        assert life.state is follows


def test_a_life_begins_at_the_first_state() -> None:
    assert (Life(PROCESS).state, Life(PLACE).state) == (ProcessState.SPAWNED, PlaceState.EMPTY)


def test_every_life_ends() -> None:
    assert PROCESS[ProcessState.BURIED] == {}
    assert set(PLACE[PlaceState.CLOSED].values()) == {PlaceState.CLOSED}


def test_nothing_is_sent_to_a_process_that_is_dying() -> None:
    assert TAKES_MESSAGES.isdisjoint({ProcessState.ABORTED, ProcessState.DYING, ProcessState.BURIED})
    assert ProcessState.READY not in IN_SETUP
