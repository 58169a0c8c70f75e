"""Strain on the machine, the worker and the neighbours of a server, each an act by a random generator.

A disk that is full is a limit on the size of files, which binds root too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import httpx
import psutil
import trio

from scenarios.faults import clients
from scenarios.faults.ledger import Violation
from scenarios.faults.life import Life
from scenarios.faults.plans import Plan, draw, helped
from scenarios.processes import children_of

FROZEN: Final = 1.0  # seconds at most: less than a --cancel-grace
ENDLESS: Final = (-1, -1)  # no limit, soft and hard


@contextmanager
def strained(life: Life, name: str) -> Iterator[bool]:
    """Whether this strain may begin: one of a kind at a time, for the length of the block."""
    free = name not in life.strains
    life.strains.add(name)
    try:
        yield free
    finally:
        if free:
            life.strains.remove(name)


def _limit_files(life: Life, limit: tuple[int, int]) -> None:
    """Of the server and of its workers: of one that comes meanwhile too, since the server is the first."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(life.server.process.pid).rlimit(psutil.RLIMIT_FSIZE, limit)
        for worker in children_of(life.server):
            with suppress(psutil.NoSuchProcess):
                worker.rlimit(psutil.RLIMIT_FSIZE, limit)


async def fill_disk(life: Life, rng: random.Random) -> None:
    """No file can grow beyond a few bytes for a while: who writes one fails with that, and nobody else."""
    with strained(life, "full disk") as free:
        if not free:
            return
        for run in life.ledger.runs.values():
            run.disk_full = run.disk_full or run.end is None
        _limit_files(life, (rng.choice((0, 1, 1_000)), -1))
        try:
            await trio.sleep(rng.uniform(0.1, 1))
        finally:
            _limit_files(life, ENDLESS)


async def freeze_worker(life: Life, rng: random.Random) -> None:
    """It stands still for a moment, and goes on as if nothing had been."""
    with strained(life, "frozen worker") as free:
        workers = children_of(life.server) if free and life.server.process.returncode is None else []
        if not workers:
            return
        worker = rng.choice(workers)
        with suppress(psutil.NoSuchProcess):
            worker.suspend()
            try:
                await trio.sleep(rng.uniform(0.05, FROZEN))
            finally:
                worker.resume()


async def hold_interpreter(life: Life, rng: random.Random) -> None:
    """C code lets nobody else in the worker do anything; a cancel waits for it."""
    with strained(life, "held interpreter") as free:
        if not free:
            return
        seconds = rng.choice((0.2, life.longest_hold / 2, life.longest_hold))
        run, body = life.new(lambda _, name: Plan(name, how="hold", seconds=seconds), rng)
        run.stopped = rng.random() < 0.5
        if life.taken(run, (await life.put(run, body, async_=True)).status_code, async_=True):
            if run.stopped:
                await trio.sleep(rng.uniform(0, seconds))
                await life.client.post(f"/predictions/{run.id}/cancel")
            await life.settle(run)


async def leave_helper(life: Life, rng: random.Random) -> None:
    """A run is over, and a process of it still writes beside the input; ``Life.calm`` sees that the folder goes."""
    run, body = life.new(helped, rng)
    reply = await life.put(run, body)
    if life.taken(run, reply.status_code, async_=False):
        life.ledger.ended(run, reply.json())


async def tell_nonsense(life: Life, rng: random.Random) -> None:
    """The webhook of a run goes to one that answers nonsense: no reason for anything to be otherwise."""
    run, body = life.new(draw, rng)
    run.webhook = False  # its end may come to the receiver never, or many times
    body["webhook"] = f"{life.stores.nonsense.url}/{run.id}"
    if life.taken(run, (await life.put(run, body, async_=True)).status_code, async_=True):
        await life.settle(run)


async def send_large(life: Life, rng: random.Random) -> None:
    run, body = life.new(lambda _, name: Plan(name, text=life.large), rng)
    run.webhook = False  # its body would be as large
    body.pop("webhook", None)
    reply = await life.put(run, body)
    if life.taken(run, reply.status_code, async_=False):
        life.ledger.ended(run, reply.json())


async def send_large_and_wrong(life: Life, rng: random.Random) -> None:
    """It is wrong at its end, or the client leaves there."""
    head, filling = b'{"input": {"name": "@0@", "text": "', b"x" * life.large
    body, status = rng.choice(
        (
            (head + filling, 400),
            (head + filling + b'\xff"}}', 400),
            (head + filling + b'", "steps": "many"}}', 422),
            (b"[" * life.large, 400),
            (b"{" + b'"input":{},' * (life.large // 11) + b"}", 400),
            (json.dumps({"input": [1] * (life.large // 3)}).encode(), 422),
            (head + filling, 0),
        )
    )
    if not status:
        stream = await clients.connect(life.server)
        try:
            await stream.send_all(life.request("POST", "/predictions", body)[: -rng.randrange(1, 100_000)])
        finally:
            await clients.leave(stream, rng)
        return
    reply = await life.client.post("/predictions", content=body, headers={"content-type": "application/json"})
    if reply.status_code != status and not (life.refusing and reply.status_code == httpx.codes.SERVICE_UNAVAILABLE):
        raise Violation(f"{len(body)} bytes {body[:50]!r} ... {body[-50:]!r}: {reply.status_code}, not {status}")
    reply.json()
