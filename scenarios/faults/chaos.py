"""The chaos driver: one life of a server after another, each with clients that do random things to it (``life.py``).

What a server is like is drawn too: its model, workers, queue, limits, token, and where files go.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from cog_trio.testing import Reply, open_server, open_webhook_receiver
from scenarios.faults import acts, sockets, strains
from scenarios.faults.ledger import RETAIN, RETAIN_BYTES, Ledger
from scenarios.faults.life import GRACE, Act, Life
from scenarios.faults.stores import open_stores
from scenarios.faults.usage import MIB
from scenarios.places import MODELS as PLACE

MODELS: Final = {"chaos.py": 1, "chaos_async.py": 4, "chaos_async.py:Trio": 4}  # and their slots
LIVES: Final = ("calm", "sigterm", "shutdown", "kill worker", "kill server", "lose worker", "stick", "freeze")
RESPAWNS: Final = ("lose worker", "stick", "freeze")
KILLED_BY_CANCEL: Final = ("stick", "freeze")
CLOSES: Final = Reply(headers=(("connection", "close"),))  # a pool of idle connections is not a leak
STARTED: Final = (acts.wait_for_one, acts.start_one, acts.follow_one, acts.cancel_one)  # once, before all is counted
ACTS: Final[Mapping[Act, int]] = {
    acts.wait_for_one: 24,
    acts.start_one: 16,
    acts.cancel_one: 14,
    acts.leave_one: 14,
    acts.join_one: 8,
    acts.follow_one: 8,
    acts.follow_slowly: 4,
    acts.read_along_slowly: 3,
    acts.fetch_one: 8,
    acts.upload_one: 6,
    acts.send_half: 4,
    acts.send_garbage: 4,
    acts.send_wrong: 6,
    acts.look_back: 4,
    sockets.talk_to_one: 8,
    sockets.cancel_by_message: 5,
    sockets.drop_socket: 5,
    sockets.talk_nonsense: 4,
    sockets.listen_slowly: 3,
    sockets.send_frames: 4,
    sockets.put_by_http2: 5,
    strains.fill_disk: 2,
    strains.freeze_worker: 2,
    strains.hold_interpreter: 2,
    strains.leave_helper: 4,
    strains.tell_nonsense: 4,
    strains.send_large: 2,
    strains.send_large_and_wrong: 2,
}
IF_GRACE: Final[Mapping[Act, int]] = {acts.come_back: 8}
IF_TOKEN: Final[Mapping[Act, int]] = {acts.try_as_stranger: 4, sockets.knock_as_stranger: 2}


@dataclass(frozen=True)
class Kind:
    """What one server is like."""

    model: str = "chaos.py"
    end: str = "calm"
    workers: int = 1
    queue: bool = False
    grace: bool = False  # lost streams may be taken up again
    token: str = ""
    uploads: bool = False
    limit: float | None = None  # seconds of a prediction

    @property
    def slots(self) -> int:
        return MODELS[self.model] * self.workers

    @property
    def longest_hold(self) -> float:
        """Seconds that a run may be deaf to its cancel without the loss of its worker."""
        return 1.0 if self.end in KILLED_BY_CANCEL else math.inf

    @property
    def flags(self) -> list[str]:
        flags = [
            "--retain",
            str(RETAIN),
            "--retain-bytes",
            str(RETAIN_BYTES),
            "--drain-grace",
            "3",
            "--webhook-grace",
            "3",
        ]
        if self.workers > 1:
            flags += ["--workers", str(self.workers)]
        if self.end in RESPAWNS:
            flags += ["--respawn"]
        if self.end in KILLED_BY_CANCEL:
            flags += ["--cancel-grace", "3"]
        if self.queue:
            flags += ["--queue", "4", "--queue-timeout", "30"]
        if self.grace:
            flags += ["--stream-grace", f"{GRACE:g}"]
        if self.limit is not None:
            flags += ["--predict-timeout", f"{self.limit:g}"]
        return flags

    @property
    def acts(self) -> dict[Act, int]:
        return {**ACTS, **(IF_GRACE if self.grace else {}), **(IF_TOKEN if self.token else {})}


def draw_kind(rng: random.Random, model: str | None = None, end: str | None = None) -> Kind:
    """Any; ``model`` and ``end`` where they are given."""
    model = model or rng.choice(list(MODELS))
    end = end or rng.choice(LIVES)
    one = MODELS[model] > 1 or end == "freeze"  # the worker that is frozen must be the one that has the run
    return Kind(
        model,
        end,
        workers=1 if one or rng.random() < 0.5 else 2,
        queue=rng.random() < 0.5,
        grace=rng.random() < 0.5,
        token="let-me-in" if rng.random() < 0.4 else "",
        uploads=rng.random() < 0.5,
        limit=1.5 if rng.random() < 0.4 else None,
    )


@dataclass
class Figures:
    """What all lives of a seed came to."""

    lives: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    ledger: Ledger = field(default_factory=Ledger)
    slowest_health: float = 0.0
    growth: tuple[int, int] = (0, 0)
    more: Counter[str] = field(default_factory=Counter)

    def add(self, kind: Kind, life: Life) -> None:
        self.lives += 1
        self.ends[kind.end] += 1
        self.ledger.did += life.ledger.did
        self.ledger.statuses += life.ledger.statuses
        self.slowest_health = max(self.slowest_health, life.slowest_health)
        self.growth = (max(self.growth[0], life.growth[0]), max(self.growth[1], life.growth[1]))
        self.more |= life.more

    def __str__(self) -> str:
        server, worker = (round(value / MIB, 1) for value in self.growth)
        return (
            f"{self.lives} lives, which ended by {_listed(self.ends)}\n"
            f"acts: {_listed(self.ledger.did)}\n"
            f"runs: {_listed(self.ledger.statuses)}\n"
            f"slowest health answer {round(1000 * self.slowest_health)} ms; "
            f"memory at most +{server} MiB (server), +{worker} MiB (workers); "
            f"left in calm, at most: {_listed(self.more) or 'nothing'}"
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


@dataclass(frozen=True)
class Form:
    """How long and how heavy a life is."""

    rounds: int
    seconds: float  # of a round
    hold: float  # seconds that C code may keep the interpreter
    large: int  # bytes of a large body


SHORT: Final = Form(2, 2.5, 1.0, 2 * MIB)
LONG: Final = Form(2, 4.0, 7.0, 20 * MIB)


async def live(rng: random.Random, form: Form, kind: Kind) -> Life:
    """One server: some rounds; then its end."""
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(open_webhook_receiver(CLOSES))
        stores = await stack.enter_async_context(open_stores(takes=kind.uploads))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        env = {"CHAOS_FOLDER": folder, **({"COG_TRIO_AUTH_TOKEN": kind.token} if kind.token else {})}
        flags = kind.flags
        if kind.uploads:
            flags += ["--upload-url", stores.uploads.url, "--upload-timeout", "2"]
        async with open_server(PLACE / kind.model, *flags, env=env, temporary=Path(folder) / "tmp") as server:
            life = Life(
                server,
                receiver,
                stores,
                rng,
                kind.acts,
                slots=kind.slots,
                workers=kind.workers,
                queue=kind.queue,
                token=kind.token,
                limit=kind.limit,
                longest_hold=min(form.hold, kind.longest_hold),
                large=form.large,
            )
            base = await life.warmed_up(STARTED)
            for _ in range(form.rounds):
                await life.round(form.seconds)
                await life.calm(base)
            if kind.end != "calm":
                await life.round(form.seconds, getattr(life, kind.end.replace(" ", "_")))
            if kind.end in RESPAWNS:
                await life.calm(base)
        if kind.end != "kill server":
            if server.process.returncode == 0:
                await life.check_webhooks()
            life.check_log()
    return life


async def run(seed: int, seconds: float, *, first: int = 0, lives: int | None = None, form: Form = LONG) -> Figures:
    """Lives of one seed, one after the other, until the time is over."""
    figures = Figures()
    until = trio.current_time() + seconds
    number = first
    while trio.current_time() < until if lives is None else number < first + lives:
        rng = random.Random(f"{seed}/{number}")
        kind = draw_kind(rng)
        print(f"seed {seed}, life {number}: {kind}", flush=True)  # what a failure needs to be seen again
        number += 1
        figures.add(kind, await live(rng, form, kind))
    return figures
