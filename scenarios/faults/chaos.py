"""The chaos driver: one life of a server after another, each with clients that do random things to it.

A life has rounds. In each, several actors act for some seconds: they run, cancel, leave, join, follow, poll and send
garbage, each by its own random generator, so that a seed draws the same acts again. Between rounds all is calm, and
then every slot must be free, no run may be without an end, and nothing may be left of what the round brought. The
first round is for warming up. The last one ends as a life may end: in calm, by SIGTERM or /shutdown amid the work, by
a kill of the worker, or of the server. Health is asked all the time.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from scenarios.faults import clients
from scenarios.faults.ledger import ENDS, Ledger, Run, Violation
from scenarios.faults.plans import Plan, draw, long
from scenarios.faults.usage import MIB, Usage, settled, usage
from scenarios.receiver import Receiver, Reply, open_receiver
from scenarios.rig import GONE, POLL, Server, marked, nothing_left, open_server

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

MODELS: Final = {"chaos.py": 1, "chaos_async.py": 4}  # and their slots
LIVES: Final = ("calm", "sigterm", "shutdown", "kill worker", "kill server", "lose worker")
BESIDE: Final = 2  # actors more than slots, so that some are refused
PATIENCE: Final = 15.0  # seconds for anything that must happen at once, on a machine that has much to do
TIDY: Final = 20.0  # seconds until what is kept in reserve (idle threads, open connections) must be gone
HEALTHY: Final = 2.0  # seconds in which health must answer, on such a machine
CLOSES: Final = Reply(headers=(("connection", "close"),))  # a pool of idle connections is no leak
GROWTH: Final = (64 * MIB, 48 * MIB)  # bytes; finished runs and buffers are kept, a soak looks closer


@dataclass
class Figures:
    """What all lives of a seed came to."""

    lives: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    slowest_health: float = 0.0
    growth: tuple[int, int] = (0, 0)

    def add(self, life: Life) -> None:
        self.lives += 1
        self.ledger.did += life.ledger.did
        self.ledger.statuses += life.ledger.statuses
        self.slowest_health = max(self.slowest_health, life.slowest_health)
        self.growth = (max(self.growth[0], life.growth[0]), max(self.growth[1], life.growth[1]))

    def __str__(self) -> str:
        did = ", ".join(f"{count} {name}" for name, count in sorted(self.ledger.did.items()))
        ends = ", ".join(f"{count} {name}" for name, count in sorted(self.ledger.statuses.items()))
        server, worker = (round(value / MIB, 1) for value in self.growth)
        health = round(1000 * self.slowest_health)
        return (
            f"{self.lives} lives; acts: {did}; ends: {ends}; slowest health answer {health} ms; "
            f"memory at most +{server} MiB (server), +{worker} MiB (worker)"
        )


class Life:
    """One server from start to end."""

    def __init__(self, server: Server, receiver: Receiver, slots: int, rng: random.Random) -> None:
        self.server = server
        self.receiver = receiver
        self.slots = slots
        self.rng = rng
        self.ledger = Ledger()
        self.slowest_health = 0.0
        self.growth = (0, 0)
        self.ending = False  # told to end: its connections may break from here on
        self.refusing = False  # ending, or without a worker: 503 is right
        self._names = 0
        self._client = server.client
        self._acts: list[tuple[int, Callable[[random.Random], Awaitable[None]]]] = [
            (24, self.wait_for_one),
            (16, self.start_one),
            (14, self.cancel_one),
            (14, self.leave_one),
            (8, self.join_one),
            (8, self.follow_one),
            (4, self.follow_slowly),
            (4, self.send_half),
            (4, self.send_garbage),
            (6, self.send_wrong),
            (4, self.look_back),
        ]

    async def round(self, seconds: float, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Actors act for some seconds; ``last`` comes in the midst of it."""
        end = trio.current_time() + seconds
        async with self._open_client(), trio.open_nursery() as watchers:
            watchers.start_soon(self._watch_health)
            async with trio.open_nursery() as actors:
                for _ in range(self.slots + BESIDE):
                    actors.start_soon(self._act, random.Random(self.rng.random()), end)
                if last is not None:
                    await trio.sleep(seconds * 0.7)
                    await last()
            watchers.cancel_scope.cancel()

    @asynccontextmanager
    async def _open_client(self) -> AsyncIterator[None]:
        """The client of all actors; its connections end with the block, so that none is taken for a leak."""
        limits = httpx.Limits(max_connections=None, keepalive_expiry=60)
        options: dict[str, Any] = {
            "base_url": self.server.url,
            "timeout": 4 * PATIENCE,
            "trust_env": False,
            "limits": limits,
        }
        async with httpx.AsyncClient(**options) as self._client:
            yield

    async def _act(self, rng: random.Random, end: float) -> None:
        weights, acts = zip(*self._acts, strict=True)
        while trio.current_time() < end and not (self.ending and self.server.process.returncode is not None):
            (act,) = rng.choices(acts, weights)
            self.ledger.did[act.__name__.replace("_", " ")] += 1
            try:
                with trio.fail_after(4 * PATIENCE):
                    await act(rng)
            except BaseException as error:
                if not _all_lost(error):
                    raise
                if not self.ending:
                    raise Violation(f"{act.__name__}: {error!r}") from error
                self._unsure_of_all()
                await trio.sleep(POLL)

    def _unsure_of_all(self) -> None:
        """The server has left in the midst of a request: nobody knows whether it took the run."""
        for run in self.ledger.runs.values():
            run.unsure |= not run.accepted

    async def _watch_health(self) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=4 * PATIENCE, trust_env=False) as client:
            while True:
                before = trio.current_time()
                try:
                    status = (await client.get("/health-check")).json()["status"]
                except httpx.TransportError as error:
                    if self.ending:
                        return
                    raise Violation(f"health does not answer: {error!r}") from error
                took = trio.current_time() - before
                self.slowest_health = max(self.slowest_health, took)
                if took > HEALTHY:
                    raise Violation(f"health took {took:.1f} s")
                if status not in ("READY", "BUSY") and not self.refusing:
                    raise Violation(f"health says {status}")
                await trio.sleep(0.05)

    # What clients do.

    def _new(self, plan: Callable[[random.Random, str], Plan], rng: random.Random) -> tuple[Run, dict[str, Any]]:
        self._names += 1
        name = f"@{self._names}@"
        run = Run(plan(rng, name), f"run-{self._names}", webhook=rng.random() < 0.25)
        self.ledger.runs[run.id] = run
        body: dict[str, Any] = {"input": run.plan.input}
        if run.webhook:
            body["webhook"] = f"{self.receiver.url}/{run.id}"
        return run, body

    def _taken(self, run: Run, status: int, *, async_: bool) -> bool:
        """Whether the reply to a create says that it was accepted."""
        if status == (202 if async_ else 200):
            run.accepted = True
            return True
        self.ledger.did[f"refused by {status}"] += 1
        if status != 409 and not (status == 503 and self.refusing):
            raise Violation(f"{run} got {status}")
        return False

    async def _put(self, run: Run, body: dict[str, Any], *, async_: bool = False) -> httpx.Response:
        headers = {"prefer": "respond-async"} if async_ else {}
        return await self._client.put(f"/predictions/{run.id}", json=body, headers=headers)

    async def _settle(self, run: Run) -> None:
        """Poll until it has ended; what is said twice must be the same."""
        with trio.move_on_after(PATIENCE):
            while True:
                reply = await self._client.get(f"/predictions/{run.id}", headers={"prefer": "wait=1"})
                if reply.status_code == 404:
                    if not run.accepted:
                        run.unsure = True
                        return
                    if run.end is not None or len(run.plan.output) * run.plan.size > 2**20:
                        return  # it has made room for others
                if reply.status_code != 200:
                    raise Violation(f"{run}: {reply.status_code} {reply.text}")
                run.accepted = True
                self.ledger.looks_right(run, reply.json())
                if reply.json()["status"] in ENDS:
                    self.ledger.ended(run, reply.json())
                    return
        raise Violation(f"{run} does not end: {reply.text[:500]}")

    async def wait_for_one(self, rng: random.Random) -> None:
        run, body = self._new(draw, rng)
        reply = await self._put(run, body)
        if self._taken(run, reply.status_code, async_=False):
            self.ledger.ended(run, reply.json())
            if rng.random() < 0.3:
                await self._settle(run)

    async def start_one(self, rng: random.Random) -> None:
        run, body = self._new(draw, rng)
        if self._taken(run, (await self._put(run, body, async_=True)).status_code, async_=True):
            await self._settle(run)

    async def cancel_one(self, rng: random.Random) -> None:
        """At any moment of its life, several times at once."""
        run, body = self._new(rng.choice((draw, long)), rng)
        run.stopped = True
        delay = rng.choice((0.0, rng.uniform(0, 0.01), rng.uniform(0, 0.1)))

        async def cancel() -> None:
            await trio.sleep(delay)
            status = (await self._client.post(f"/predictions/{run.id}/cancel")).status_code
            if status not in (200, 404):
                raise Violation(f"cancel of {run}: {status}")

        async with trio.open_nursery() as nursery:
            for _ in range(rng.randint(1, 3)):
                nursery.start_soon(cancel)
            async_ = rng.random() < 0.5
            reply = await self._put(run, body, async_=async_)
            if self._taken(run, reply.status_code, async_=async_) and not async_:
                self.ledger.ended(run, reply.json())
        if run.accepted:
            await self._client.post(f"/predictions/{run.id}/cancel")
            await self._settle(run)

    async def leave_one(self, rng: random.Random) -> None:
        run, body = self._new(rng.choice((draw, long)), rng)
        run.stopped = True
        stream = await clients.connect(self.server)
        try:
            await stream.send_all(clients.request("PUT", f"/predictions/{run.id}", body))
            await trio.sleep(rng.choice((0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.2))))
        finally:
            await clients.leave(stream, rng)
        await trio.sleep(0.01)  # the request may still be on its way in
        await self._settle(run)

    async def join_one(self, rng: random.Random) -> None:
        """Several PUTs of one id: one run, one end for all who stay. Who leaves stops it only when all have left."""
        run, body = self._new(lambda rng, name: Plan(name, rng.randrange(4), seconds=rng.uniform(0.05, 0.2)), rng)
        run.webhook = False  # it may run again when it has ended between two of them
        body.pop("webhook", None)
        several, by_itself = rng.randint(2, 4), rng.random() < 0.5
        leavers = rng.randrange(several)
        run.stopped = leavers > 0 and not by_itself

        async def leaver() -> None:
            stream = await clients.connect(self.server)
            try:
                await stream.send_all(clients.request("PUT", f"/predictions/{run.id}", body))
                await trio.sleep(rng.uniform(0, 0.05))
            finally:
                await clients.leave(stream, rng)

        async def stayer() -> None:
            await trio.sleep(rng.uniform(0, 0.01))
            reply = await self._put(run, body)
            if self._taken(run, reply.status_code, async_=False):
                if run.end is not None and run.end["created_at"] != reply.json()["created_at"]:
                    self.ledger.did["ran again"] += 1
                else:
                    self.ledger.ended(run, reply.json())

        if by_itself and not self._taken(run, (await self._put(run, body, async_=True)).status_code, async_=True):
            return
        async with trio.open_nursery() as nursery:
            for number in range(several):
                nursery.start_soon(leaver if number < leavers else stayer)

    async def follow_one(self, rng: random.Random) -> None:
        """Its events, to the end or until it gets boring."""
        run, body = self._new(draw, rng)
        bored = rng.random() < 0.4
        run.stopped = bored
        headers = {"accept": "text/event-stream"}
        async with self._client.stream("PUT", f"/predictions/{run.id}", json=body, headers=headers) as reply:
            if not self._taken(run, reply.status_code, async_=False):
                return
            with trio.move_on_after(rng.uniform(0, 0.1) if bored else 4 * PATIENCE):
                await self._read_events(run, reply)
        await self._settle(run)

    async def _read_events(self, run: Run, reply: httpx.Response) -> None:
        name, chunks, logs = "", [], ""
        async for line in reply.aiter_lines():
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                data = httpx.Response(200, text=value).json()
                if name == "output":
                    chunks.append(data["chunk"])
                elif name == "log":
                    logs += data["data"]
                elif name == "completed":
                    self.ledger.ended(run, data)
        if name != "completed":
            if self.ending:
                return
            raise Violation(f"the last event of {run} is {name!r}")
        assert run.end is not None
        if chunks != (run.end.get("output") or []):
            raise Violation(f"{run} sent {len(chunks)} chunks, not {len(run.end.get('output') or [])}")

    async def follow_slowly(self, rng: random.Random) -> None:
        """A stream of much, on a connection that takes little."""
        run, body = self._new(lambda rng, name: Plan(name, rng.randrange(100, 1_000), 4_000), rng)
        run.stopped = True
        stream = await clients.connect(self.server, narrow=True)
        try:
            head = clients.request("PUT", f"/predictions/{run.id}", body, accept="text/event-stream")
            await stream.send_all(head)
            with trio.move_on_after(rng.uniform(0, 1)):
                while await stream.receive_some(rng.choice((1, 100, 4_096))):
                    await trio.sleep(rng.uniform(0, 0.05))
        finally:
            await clients.leave(stream, rng)
        await self._settle(run)

    async def send_half(self, rng: random.Random) -> None:
        """A request that ends in its midst."""
        run, body = self._new(draw, rng)
        run.stopped = True
        whole = clients.request("PUT", f"/predictions/{run.id}", body)
        stream = await clients.connect(self.server)
        try:
            await stream.send_all(whole[: rng.randrange(1, len(whole))])
            await trio.sleep(rng.uniform(0, 0.05))
        finally:
            await clients.leave(stream, rng)
        await self._settle(run)
        if run.accepted:
            raise Violation(f"half a request began {run}")

    async def send_garbage(self, rng: random.Random) -> None:
        bad = rng.choice((*clients.BAD, rng.randbytes(rng.randrange(1, 2_000))))
        stream = await clients.connect(self.server)
        try:
            await stream.send_all(bad)
            came = await clients.read_all(stream, rng.uniform(0, 0.3))
            if came.startswith(b"HTTP/1.1 5"):
                raise Violation(f"{bad[:100]!r} got {came[:200]!r}")
        except clients.GONE:
            pass
        finally:
            await clients.leave(stream, rng)

    async def send_wrong(self, rng: random.Random) -> None:
        method, path, body, status = rng.choice(clients.WRONG)
        reply = await self._client.request(method, path, content=body, headers={"content-type": "application/json"})
        if reply.status_code != status and not (self.refusing and reply.status_code == 503):
            raise Violation(f"{method} {path} {body[:50]!r}: {reply.status_code}, not {status}: {reply.text[:200]}")
        reply.json()

    async def look_back(self, rng: random.Random) -> None:
        """An end of some time ago is what it was, or nobody remembers it."""
        over = [run for run in self.ledger.runs.values() if run.end is not None]
        if over:
            run = rng.choice(over[-100:])
            reply = await self._client.get(f"/predictions/{run.id}")
            if reply.status_code == 200:
                self.ledger.ended(run, reply.json())
            elif reply.status_code != 404:
                raise Violation(f"{run}: {reply.status_code}")

    # What must hold.

    async def warmed_up(self) -> Usage:
        """What a server holds that has done all kinds of things once."""
        for act in (self.wait_for_one, self.start_one, self.follow_one, self.cancel_one):
            async with self._open_client():
                for number in range(8):
                    await act(random.Random(number))
        await self._check_webhooks()
        await trio.sleep(1)
        return usage(self.server)

    async def calm(self, base: Usage) -> Usage:
        """All has ended: every slot is free at once, and nothing is more than it was."""
        async with self._open_client():
            with trio.move_on_after(PATIENCE) as waited:
                while (await self._client.get("/health-check")).json()["status"] != "READY":
                    await trio.sleep(POLL)
            if waited.cancelled_caught:
                raise Violation("slots do not come back")
            for _ in range(5):
                async with trio.open_nursery() as nursery:
                    for _ in range(self.slots):
                        nursery.start_soon(self._run_for_sure)
        await self._check_webhooks()
        now, more = await settled(self.server, base, TIDY)
        if more:
            raise Violation(f"left behind: {more}")
        self.growth = now.growth(base)
        if any(grown > allowed for grown, allowed in zip(self.growth, GROWTH, strict=True)):
            raise Violation(f"memory grew by {self.growth} bytes")
        return now

    async def _run_for_sure(self) -> None:
        run, body = self._new(lambda rng, name: Plan(name, lines=1), self.rng)
        reply = await self._put(run, body)
        if reply.status_code != 200:
            raise Violation(f"a slot is free, and {run} got {reply.status_code}: {reply.text}")
        run.accepted = True
        self.ledger.ended(run, reply.json())

    async def _check_webhooks(self) -> None:
        """Each accepted run has had exactly one terminal webhook, the last; a refused one none at all."""
        for run in self.ledger.runs.values():
            if not run.webhook:
                continue
            with trio.move_on_after(PATIENCE):
                while run.accepted and not any(webhook.ends for webhook in self._webhooks(run)):
                    await trio.sleep(POLL)
            came = self._webhooks(run)
            ends = [webhook.ends for webhook in came]
            run.accepted |= run.unsure and bool(came)
            if ends != ([False] * (len(ends) - 1) + [True] if run.accepted else []):
                raise Violation(f"{run} had webhooks {ends}")
            for webhook in came:
                self.ledger.looks_right(run, webhook.body)
            if came:
                self.ledger.ended(run, came[-1].body)
            run.webhook = False  # checked

    def _webhooks(self, run: Run) -> list[Any]:
        return [webhook for webhook in self.receiver.came if webhook.path == f"/{run.id}"]

    def check_log(self) -> None:
        """No traceback and no error of ours in the service log."""
        for entry in self.server.log:
            text = str(entry)
            if "Traceback" in text or "raw" in entry or (entry.get("level") == "ERROR" and not self.ledger.fatal):
                raise Violation(f"in the service log: {text[:3_000]}")

    # How a life may end.

    async def sigterm(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        self.server.process.terminate()

    async def shutdown(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        assert (await self._client.post("/shutdown")).status_code == 200

    async def kill_worker(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        worker = self.server.worker()
        worker.kill()
        with trio.move_on_after(GONE):
            while [process.pid for process in marked(self.server.mark)] != [self.server.process.pid]:
                await trio.sleep(POLL)
            if (await self.server.health())["status"] != "DEFUNCT":
                raise Violation("the worker is dead, and health does not say so")
            return
        raise Violation(f"a dead worker leaves {marked(self.server.mark)}")

    async def lose_worker(self) -> None:
        """The worker is killed, and another one takes its place."""
        self.refusing = self.ledger.fatal = True
        lost = self.server.worker()
        lost.kill()
        with trio.move_on_after(PATIENCE):
            while [child.pid for child in self.server.children()] in ([], [lost.pid]):
                await trio.sleep(POLL)
            await self.server.until("READY", PATIENCE)
            return
        raise Violation("no other worker takes the place of a dead one")

    async def kill_server(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        self.server.expected = None
        self.server.process.kill()
        await self.server.ended()
        await nothing_left(self.server.mark)


def _all_lost(error: BaseException) -> bool:
    """Whether it is nothing but connections that the server has closed."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_all_lost, error.exceptions))
    return isinstance(error, (httpx.TransportError, EOFError, *clients.GONE))


async def live(rng: random.Random, seconds: float, rounds: int, model: str, end: str) -> Life:
    """One server: ``rounds`` rounds of so many seconds, the first for warming up; then its end."""
    async with open_receiver(CLOSES) as receiver:
        with tempfile.TemporaryDirectory() as folder:
            env = {"CHAOS_FOLDER": folder}
            temporary = Path(folder) / "tmp"
            flags: tuple[str, ...] = ("--retain", "100", "--retain-bytes", "8MiB", "--drain-grace", "3")
            if end == "lose worker":
                flags += ("--respawn",)
            if rng.random() < 0.5:
                flags += ("--queue", "4", "--queue-timeout", "30")
            async with open_server(model, temporary, *flags, env=env) as server:
                life = Life(server, receiver, MODELS[model], rng)

                base = await life.warmed_up()
                for _ in range(rounds):
                    await life.round(seconds)
                    await life.calm(base)
                if end != "calm":
                    await life.round(seconds, getattr(life, end.replace(" ", "_")))
                if end == "lose worker":
                    await life.calm(base)
            if end != "kill server":
                if server.process.returncode == 0:
                    await life._check_webhooks()
                life.check_log()
    return life


async def run(
    seed: int, seconds: float, *, first: int = 0, lives: int | None = None, rounds: int = 2, length: float = 4.0
) -> Figures:
    """Lives of one seed, one after the other, until the time is over."""
    figures = Figures()
    until = trio.current_time() + seconds
    number = first
    while trio.current_time() < until if lives is None else number < first + lives:
        rng = random.Random(f"{seed}/{number}")
        model, end = rng.choice(list(MODELS)), rng.choice(LIVES)
        print(f"seed {seed}, life {number}: {model}, {end}", flush=True)  # what a failure needs to be seen again
        number += 1
        figures.add(await live(rng, length, rounds, model, end))
    return figures
