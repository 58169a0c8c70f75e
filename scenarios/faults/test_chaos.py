"""The chaos driver for a minute in all; ``make chaos`` runs it for longer.

``COG_TRIO_CHAOS_SEED`` draws the acts of an earlier run again; without it the day decides, and the seed is printed.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

import pytest
import trio

from scenarios.faults.chaos import SHORT, draw_kind, live

SEED: Final = int(os.environ.get("COG_TRIO_CHAOS_SEED") or time.time() // 86_400)
LIVES: Final = (  # nobody's luck leaves a kind of runner or of end out
    ("chaos.py", ("sigterm", "shutdown", "calm")),
    ("chaos.py", ("kill worker", "lose worker", "stick", "freeze")),
    ("chaos_async.py", ("kill worker", "kill server", "stick", "freeze")),
    ("chaos_async.py:Trio", ("lose worker", "stick", "freeze", "sigterm")),
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("model", "ends"), LIVES)
async def test_chaos(model: str, ends: tuple[str, ...]) -> None:
    """Given clients that run, cancel, leave, join, follow, and send garbage at random, a disk that is full, a
    worker that freezes, and a server that is stopped or killed in the midst of it, then every accepted run has one
    end, slots are free and nothing is left."""
    rng = random.Random(f"{SEED}/{model}/{ends}")
    kind = draw_kind(rng, model, rng.choice(ends))
    print(f"seed {SEED}: {kind}")
    with trio.fail_after(150):
        life = await live(rng, SHORT, kind)
    assert life.ledger.statuses["succeeded"] > 10, life.ledger
