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

from scenarios.faults.chaos import Kind, draw_kind, live

SEED: Final = int(os.environ.get("COG_TRIO_CHAOS_SEED") or time.time() // 86_400)
ENDS: Final = {  # of the four lives: nobody's luck leaves one of them out
    "chaos.py": (("sigterm", "shutdown", "calm"), ("kill worker", "lose worker", "stick")),
    "chaos_async.py": (("kill worker", "kill server"), ("lose worker", "stick", "sigterm")),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("model", "number"), [(model, number) for model in ENDS for number in range(2)])
async def test_chaos(model: str, number: int) -> None:
    """Given clients that run, cancel, leave, join, follow, and send garbage at random, and a server that is stopped or
    killed in the midst of it, then every accepted run has one end, slots are free and nothing is left."""
    rng = random.Random(f"{SEED}/{model}/{number}")
    kind: Kind = draw_kind(rng, model, rng.choice(ENDS[model][number]))
    print(f"seed {SEED}: {kind}")
    with trio.fail_after(150):
        life = await live(rng, 2.5, 2, kind)
    assert life.ledger.statuses["succeeded"] > 10, life.ledger
