"""One server from start to end: what is done to it, and what must hold.

Actors act for some seconds: they run, cancel, leave, join, follow, poll and send garbage (``acts.py``, ``sockets.py``),
and put strain on the machine (``strains.py``), each by its own random generator, so that a seed draws the same acts
again. Between rounds all is calm, and then every slot must be free, no run may be without an end, and nothing may be
left of what the round brought. The last round ends as a life may end: in calm, by SIGTERM or /shutdown amid the work,
by a kill of a worker, or of the server. Health is asked all the time.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import httpx
import trio

from cog_trio.testing import Server, WebhookReceiver
from cog_trio.testing.processes import GONE, POLL, marked, nothing_left
from scenarios.faults import clients
from scenarios.faults.ledger import ENDS, Ledger, Run, Violation
from scenarios.faults.plans import Plan
from scenarios.faults.stores import Stores
from scenarios.faults.talk import Closed
from scenarios.faults.usage import MIB, Usage, own_share, processor, settled, usage
from scenarios.processes import children_of

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

BESIDE: Final = 2  # actors more than slots, so that some are refused
PATIENCE: Final = 15.0  # seconds for anything that must happen at once, on a machine that has much to do
TIDY: Final = 20.0  # seconds until what is kept in reserve (idle threads, open connections) must be gone
HEALTHY: Final = 2.0  # seconds in which health must answer, on such a machine
GRACE: Final = 5.0  # seconds of --stream-grace, where a life has it
GROWTH: Final = (64 * MIB, 48 * MIB)  # bytes; finished runs and buffers are kept, a soak looks closer
Act: TypeAlias = "Callable[[Life, random.Random], Awaitable[None]]"


class Life:
    """One server, and who knows what about it."""

    def __init__(
        self,
        server: Server,
        receiver: WebhookReceiver,
        stores: Stores,
        rng: random.Random,
        acts: Mapping[Act, int],
        *,
        slots: int,
        workers: int = 1,
        queue: bool = False,
        token: str = "",
        limit: float | None = None,
        longest_hold: float = 1.0,
        large: int = 2 * MIB,
    ) -> None:
        self.server = server
        self.receiver = receiver
        self.stores = stores
        self.slots = slots  # of all workers
        self.token = token
        self.ledger = Ledger(limit=limit)
        self.slowest_health = 0.0
        self.growth = (0, 0)
        self.more: Counter[str] = Counter()  # descriptors, threads, processes and files more than after warming up
        self.ending = False  # told to end: its connections may break from here on
        self.refusing = False  # ending, or without a worker: 503 is right
        self.longest_hold = longest_hold  # seconds that C code may keep the interpreter
        self.large = large  # bytes of a large body
        self.strains: set[str] = set()  # what is done to the machine just now
        self.client = server.client
        self._rng = rng
        self._acts = acts
        self._workers = workers
        self._queue = queue
        self._names = 0

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> bytes:
        """The bytes of a request."""
        return clients.request(method, path, body, **self.headers, **headers)

    async def round(self, seconds: float, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Actors act for some seconds; ``last`` comes in the midst of it."""
        self.stores.nonsense.begins()
        end = trio.current_time() + seconds
        async with self.open_client(), trio.open_nursery() as watchers:
            watchers.start_soon(self._watch_health)
            async with trio.open_nursery() as actors:
                for _ in range(self.slots + BESIDE):
                    actors.start_soon(self._act, random.Random(self._rng.random()), end)
                if last is not None:
                    await trio.sleep(seconds * 0.7)
                    await last()
            watchers.cancel_scope.cancel()

    @asynccontextmanager
    async def open_client(self) -> AsyncIterator[None]:
        """The client of all actors; its connections end with the block, so that none is taken for a leak."""
        limits = httpx.Limits(max_connections=None, keepalive_expiry=60)
        options: dict[str, Any] = {
            "base_url": self.server.url,
            "headers": self.headers,
            "timeout": 4 * PATIENCE,
            "trust_env": False,
            "limits": limits,
            "event_hooks": {"request": [_send_whole]},
        }
        async with httpx.AsyncClient(**options) as self.client:
            yield

    async def _act(self, rng: random.Random, end: float) -> None:
        acts, weights = list(self._acts), list(self._acts.values())
        while trio.current_time() < end and not (self.ending and self.server.process.returncode is not None):
            (act,) = rng.choices(acts, weights)
            name = act.__name__.replace("_", " ")
            self.ledger.did[name] += 1
            try:
                with trio.fail_after(4 * PATIENCE):
                    await act(self, rng)
            except BaseException as error:
                if not _all_lost(error):
                    raise
                if not self.ending:
                    raise Violation(f"{name}: {error!r}") from error
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
                processors = {pid: processor(pid) for pid in (os.getpid(), self.server.process.pid)}
                try:
                    status = (await client.get("/health-check")).json()["status"]
                except httpx.TransportError as error:
                    if self.ending:
                        return
                    raise Violation(f"health does not answer: {error!r}") from error
                took = trio.current_time() - before
                for pid, then in processors.items():  # less what others on the machine took from the two of us
                    took *= own_share(pid, then)
                self.slowest_health = max(self.slowest_health, took)
                if took > HEALTHY:
                    raise Violation(f"health took {took:.1f} s")
                if status not in ("READY", "BUSY") and not self.refusing:
                    raise Violation(f"health says {status}")
                await trio.sleep(0.05)

    # For acts.

    def new(self, plan: Callable[[random.Random, str], Plan], rng: random.Random) -> tuple[Run, dict[str, Any]]:
        self._names += 1
        name = f"@{self._names}@"
        run = Run(self.stores.place(plan(rng, name)), f"run-{self._names}", webhook=rng.random() < 0.25)
        run.disk_full = "full disk" in self.strains
        self.ledger.runs[run.id] = run
        body: dict[str, Any] = {"input": run.plan.input}
        if run.webhook:
            body["webhook"] = f"{self.receiver.url}/{run.id}"
        return run, body

    def taken(self, run: Run, status: int, *, async_: bool) -> bool:
        """Whether the reply to a create says that it was accepted."""
        if status == (202 if async_ else 200):
            run.accepted = True
            return True
        self.ledger.did[f"refused by {status}"] += 1
        if status != 409 and not (status == 503 and self.refusing):
            raise Violation(f"{run} got {status}")
        run.unsure |= self._queue  # it may have waited for a slot: then its end is told by webhook too
        return False

    async def put(self, run: Run, body: dict[str, Any], *, async_: bool = False) -> httpx.Response:
        headers = {"prefer": "respond-async"} if async_ else {}
        return await self.client.put(f"/predictions/{run.id}", json=body, headers=headers)

    async def settle(self, run: Run) -> None:
        """Poll until it has ended; what is said twice must be the same."""
        with trio.move_on_after(PATIENCE):
            while True:
                reply = await self.client.get(f"/predictions/{run.id}", headers={"prefer": "wait=1"})
                if reply.status_code == 404:
                    if not run.accepted:
                        run.unsure = True
                        return
                    if run.end is not None or self.ledger.may_be_forgotten(run):
                        return  # it has made room for others
                if reply.status_code != 200:
                    raise Violation(f"{run}: {reply.status_code} {reply.text}")
                run.accepted = True
                self.ledger.looks_right(run, reply.json())
                if reply.json()["status"] in ENDS:
                    self.ledger.ended(run, reply.json())
                    return
        raise Violation(f"{run} does not end: {reply.text[:500]}")

    # What must hold.

    async def warmed_up(self, acts: Sequence[Act]) -> Usage:
        """What a server holds that has done all kinds of things once."""
        async with self.open_client():
            await self._until_ready()
        for act in acts:
            async with self.open_client():
                for number in range(8):
                    await act(self, random.Random(number))
        await self.check_webhooks()
        await trio.sleep(1)
        return usage(self.server)

    async def calm(self, base: Usage) -> Usage:
        """All has ended: every slot is free at once, and nothing is more than it was."""
        self.stores.nonsense.relents()
        async with self.open_client():
            await self._until_ready()
            for _ in range(5):
                async with trio.open_nursery() as nursery:
                    for _ in range(self.slots):
                        nursery.start_soon(self._run_for_sure)
        await self.check_webhooks()
        if lost := [str(run) for run in self.ledger.endless if not await self._was_forgotten(run)]:
            raise Violation(f"without an end: {lost}")
        now, more = await settled(self.server, base, TIDY)
        if more:
            raise Violation(f"left behind: {more}")
        self.growth = now.growth(base)
        self.more = now.more(base)
        server, workers = GROWTH
        workers += 2 * self.large  # of what was freed: a worker's C library is the model's to set
        if self.growth[0] > server or self.growth[1] > workers:
            raise Violation(f"memory grew by {self.growth} bytes")
        return now

    async def _until_ready(self) -> None:
        """All workers are there, and a slot is free in each."""
        with trio.move_on_after(2 * PATIENCE):
            while True:
                health = (await self.client.get("/health-check")).json()
                states = [worker["status"] for worker in health.get("workers", [health])]
                if health["status"] == "READY" and states == ["READY"] * self._workers:
                    return
                await trio.sleep(POLL)
        raise Violation(f"slots do not come back: {health}")

    async def _was_forgotten(self, run: Run) -> bool:
        """It has made room for others. Else its end is seen now."""
        async with httpx.AsyncClient(base_url=self.server.url, headers=self.headers, trust_env=False) as client:
            reply = await client.get(f"/predictions/{run.id}")
        if reply.status_code == 404:
            return True
        self.ledger.ended(run, reply.json())
        return run.end is not None and run.end["status"] in ENDS

    async def _run_for_sure(self) -> None:
        run, body = self.new(lambda rng, name: Plan(name, lines=1), self._rng)
        reply = await self.put(run, body)
        if reply.status_code != 200:
            raise Violation(f"a slot is free, and {run} got {reply.status_code}: {reply.text}")
        run.accepted = True
        self.ledger.ended(run, reply.json())

    async def check_webhooks(self) -> None:
        """Each accepted run has had exactly one terminal webhook, the last; a refused one none at all."""
        for run in self.ledger.runs.values():
            if not run.webhook:
                continue
            with trio.move_on_after(PATIENCE):
                while run.accepted and not any(webhook.json()["status"] in ENDS for webhook in self._webhooks(run)):
                    await trio.sleep(POLL)
            came = self._webhooks(run)
            ends = [webhook.json()["status"] in ENDS for webhook in came]
            run.accepted |= run.unsure and bool(came)
            said = [entry for entry in self.server.log if run.id in str(entry) and "given up" in str(entry)]
            if self.ending and said and True not in ends:  # the grace for the last webhooks was over, and it says so
                self.ledger.did["webhook given up at the end"] += 1
                run.webhook = False
                continue
            if ends != ([False] * (len(ends) - 1) + [True] if run.accepted else []):
                raise Violation(f"{run} had webhooks {ends}; the log has {said}")
            for webhook in came:
                self.ledger.looks_right(run, webhook.json())
            if came:
                self.ledger.ended(run, came[-1].json())
            run.webhook = False  # checked

    def _webhooks(self, run: Run) -> list[Any]:
        return [webhook for webhook in self.receiver.came if webhook.path == f"/{run.id}"]

    def check_log(self) -> None:
        """No traceback and no error of ours in the service log; what the model prints is its own matter."""
        for entry in self.server.log:
            if entry.get("target") == "cog_trio.user":
                continue
            text = str(entry)
            expected = self.ledger.fatal or self.stores.nonsense.url in text
            if "Traceback" in text or "raw" in entry or (entry.get("level") == "ERROR" and not expected):
                raise Violation(f"in the service log: {text[:3_000]}")

    # How a life may end.

    async def sigterm(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        self.server.process.terminate()

    async def shutdown(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        assert (await self.client.post("/shutdown")).status_code == 200

    async def kill_worker(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        for worker in children_of(self.server):
            worker.kill()
        status = ""
        with trio.move_on_after(GONE):
            while marked(self.server.mark) != [self.server.process.pid] or status != "DEFUNCT":
                status = (await self.server.health())["status"]
                await trio.sleep(POLL)
            return
        raise Violation(f"a dead worker leaves {marked(self.server.mark)}, health {status}")

    async def lose_worker(self) -> None:
        """The worker is killed, and another one takes its place."""
        self.refusing = self.ledger.fatal = True
        lost = self._rng.choice(children_of(self.server))
        lost.kill()
        await self._until_replaced(lost.pid)

    async def _until_replaced(self, pid: int) -> None:
        with trio.move_on_after(2 * PATIENCE):
            while True:
                workers = [child.pid for child in children_of(self.server)]
                health = (await self.client.get("/health-check")).json()
                states = [worker["status"] for worker in health.get("workers", [health])]
                if pid not in workers and len(workers) == self._workers and set(states) <= {"READY", "BUSY"}:
                    return
                await trio.sleep(POLL)
        raise Violation(f"no other worker takes the place of a dead one: {health}, {workers}")

    async def stick(self) -> None:
        """A run stops for nothing: with --cancel-grace its worker is killed, and another one takes its place."""
        await self._lose_by_cancel("stuck", lambda: None)

    async def freeze(self) -> None:
        """The worker stands still for good: a cancel that it does not hear ends it, by --cancel-grace."""
        (worker,) = children_of(self.server)
        await self._lose_by_cancel("sleep", worker.suspend)

    async def _lose_by_cancel(self, how: str, before_cancel: Callable[[], None]) -> None:
        self.refusing = self.ledger.fatal = True
        before = {child.pid for child in children_of(self.server)}
        with trio.move_on_after(2 * PATIENCE):
            while True:
                run, body = self.new(lambda rng, name: Plan(name, how=how, seconds=100.0), self._rng)
                run.stopped = True
                if self.taken(run, (await self.put(run, body, async_=True)).status_code, async_=True):
                    break
                await trio.sleep(POLL)
        await trio.sleep(0.3)
        before_cancel()
        await self.client.post(f"/predictions/{run.id}/cancel")
        await self.settle(run)
        assert run.end is not None
        if run.end["status"] == "failed" and run.end["error"].startswith("Worker killed: "):
            gone = before - {child.pid for child in children_of(self.server)}
            if len(gone) != 1:
                raise Violation(f"of {before} {gone} have gone")
            await self._until_replaced(*gone)
        elif run.end["status"] != "canceled":  # it was so before it began to be stuck
            raise Violation(f"{run} was stuck, and ended as {run.end}")

    async def kill_server(self) -> None:
        self.ending = self.refusing = self.ledger.fatal = True
        self.server.expected = None
        self.server.process.kill()
        await self.server.ended()
        await nothing_left(self.server.mark)


class _Whole(httpx.AsyncByteStream):
    """A body that leaves no generator half-way when the server does not want all of it."""

    def __init__(self, content: bytes) -> None:
        self._left = [content]

    def __aiter__(self) -> _Whole:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


async def _send_whole(request: httpx.Request) -> None:
    request.stream = _Whole(request.content)
    await trio.lowlevel.checkpoint()


def _all_lost(error: BaseException) -> bool:
    """Whether it is nothing but connections that the server has closed."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_all_lost, error.exceptions))
    return isinstance(error, (httpx.TransportError, EOFError, Closed, *clients.GONE))
