"""The chaos driver for a short while; ``make chaos`` runs it for longer.

``COG_TRIO_CHAOS_SEED`` draws the acts of an earlier run again; without it the day decides, and the seed is printed.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

import pytest
import trio

from scenarios.faults.chaos import LIVES, MODELS, Life, live

SEED: Final = int(os.environ.get("COG_TRIO_CHAOS_SEED") or time.time() // 86_400)


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings(  # a request of the driver's own client, cut on purpose while it sends its body
    "ignore:Exception ignored in. <async_generator object ByteStream:pytest.PytestUnraisableExceptionWarning",
    "ignore:Async generator 'httpx._content.ByteStream:ResourceWarning",
)
@pytest.mark.parametrize("model", MODELS)
async def test_chaos(model: str) -> None:
    """Given clients that run, cancel, leave, join, follow, and send garbage at random, and a server that is stopped or
    killed in the midst of it, then every accepted run has one end, slots are free and nothing is left."""
    rng = random.Random(f"{SEED}/{model}")
    end = rng.choice(LIVES)
    print(f"seed {SEED}: {model}, {end}")
    with trio.fail_after(100):
        life: Life = await live(rng, 1.5, 2, model, end)
    assert life.ledger.statuses["succeeded"] > 10, life.ledger
