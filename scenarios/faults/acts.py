"""What clients do to a server over plain HTTP/1.1, each act by a random generator; ``chaos.py`` says how often."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import httpx
import trio

from cog_trio.testing import Event
from scenarios.faults import clients
from scenarios.faults.ledger import Run, Violation
from scenarios.faults.life import GRACE, PATIENCE, Life
from scenarios.faults.plans import Plan, draw, fetching, flood, long, short, steady, uploading


class Parser:
    """Server-sent events, line by line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> Event | None:
        """The event that ends with this line, if one does."""
        if line:
            name, _, value = line.partition(": ")
            self._fields[name] = value
            return None
        fields, self._fields = self._fields, {}
        return Event(fields["id"], fields["event"], json.loads(fields["data"])) if "data" in fields else None


def check_chunks(run: Run, chunks: list[object], *, skipped: bool = False) -> None:
    """Whoever has followed a run to its end has seen all of its output, as it is.

    ``skipped``: was told that something is missing, which is so where a run that is stopped no longer waits for him.
    """
    assert run.end is not None
    if skipped and run.end["status"] != "succeeded":
        return
    if skipped or chunks != (run.end.get("output") or []):
        raise Violation(f"{run} sent {len(chunks)} chunks, not {len(run.end.get('output') or [])}")


async def wait_for_one(life: Life, rng: random.Random) -> None:
    run, body = life.new(draw, rng)
    reply = await life.put(run, body)
    if life.taken(run, reply.status_code, async_=False):
        life.ledger.ended(run, reply.json())
        if rng.random() < 0.3:
            await life.settle(run)


async def start_one(life: Life, rng: random.Random) -> None:
    run, body = life.new(draw, rng)
    if life.taken(run, (await life.put(run, body, async_=True)).status_code, async_=True):
        await life.settle(run)


async def cancel_one(life: Life, rng: random.Random) -> None:
    """At any moment of its life, several times at once."""
    run, body = life.new(rng.choice((draw, long)), rng)
    run.stopped = True
    delay = rng.choice((0.0, rng.uniform(0, 0.01), rng.uniform(0, 0.1)))

    async def cancel() -> None:
        await trio.sleep(delay)
        status = (await life.client.post(f"/predictions/{run.id}/cancel")).status_code
        if status not in (200, 404):
            raise Violation(f"cancel of {run}: {status}")

    async with trio.open_nursery() as nursery:
        for _ in range(rng.randint(1, 3)):
            nursery.start_soon(cancel)
        async_ = rng.random() < 0.5
        reply = await life.put(run, body, async_=async_)
        if life.taken(run, reply.status_code, async_=async_) and not async_:
            life.ledger.ended(run, reply.json())
    if run.accepted:
        await life.client.post(f"/predictions/{run.id}/cancel")
        await life.settle(run)


async def leave_one(life: Life, rng: random.Random) -> None:
    run, body = life.new(rng.choice((draw, long)), rng)
    run.stopped = True
    stream = await clients.connect(life.server)
    try:
        await stream.send_all(life.request("PUT", f"/predictions/{run.id}", body))
        await trio.sleep(rng.choice((0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.2))))
    finally:
        await clients.leave(stream, rng)
    await trio.sleep(0.01)  # the request may still be on its way in
    await life.settle(run)


async def join_one(life: Life, rng: random.Random) -> None:
    """Several PUTs of one id: one run, one end for all who stay. Who leaves stops it only when all have left."""
    run, body = life.new(short, rng)
    run.webhook = False  # it may run again when it has ended between two of them
    body.pop("webhook", None)
    several, by_itself = rng.randint(2, 4), rng.random() < 0.5
    leavers, made = rng.randrange(several), ""
    run.stopped = leavers > 0 and not by_itself

    async def leaver() -> None:
        stream = await clients.connect(life.server)
        try:
            await stream.send_all(life.request("PUT", f"/predictions/{run.id}", body))
            await trio.sleep(rng.uniform(0, 0.05))
        finally:
            await clients.leave(stream, rng)

    async def stayer() -> None:
        await trio.sleep(rng.uniform(0, 0.01))
        reply = await life.put(run, body)
        if life.taken(run, reply.status_code, async_=False):
            first = made or (run.end and run.end["created_at"])
            if first and first != reply.json()["created_at"]:
                life.ledger.did["ran again"] += 1
            else:
                life.ledger.ended(run, reply.json())

    if by_itself:
        reply = await life.put(run, body, async_=True)
        if not life.taken(run, reply.status_code, async_=True):
            return
        made = (await life.client.get(f"/predictions/{run.id}")).json()["created_at"]
    async with trio.open_nursery() as nursery:
        for number in range(several):
            nursery.start_soon(leaver if number < leavers else stayer)
    del life.ledger.runs[run.id]  # who came late has had it run again: its end is another one by now


async def follow_one(life: Life, rng: random.Random) -> None:
    """Its events, to the end or until it gets boring."""
    run, body = life.new(draw, rng)
    bored = rng.random() < 0.4
    run.stopped = bored
    headers = {"accept": "text/event-stream"}
    async with life.client.stream("PUT", f"/predictions/{run.id}", json=body, headers=headers) as reply:
        if not life.taken(run, reply.status_code, async_=False):
            return
        with trio.move_on_after(rng.uniform(0, 0.1) if bored else 4 * PATIENCE):
            await read_events(life, run, reply)
    await life.settle(run)


async def read_events(life: Life, run: Run, reply: httpx.Response) -> None:
    """To the last one, and see that they make up the output."""
    parser, chunks, last, skipped = Parser(), [], "", False
    async for line in reply.aiter_lines():
        if (event := parser.feed(line)) is None:
            continue
        last = event.name
        if last == "output":
            chunks.append(event.data["chunk"])
        elif last == "error":
            skipped = "skipped" in event.data
        elif last == "completed":
            life.ledger.ended(run, event.data)
    if last != "completed":
        if life.ending:
            return
        raise Violation(f"the last event of {run} is {last!r}")
    check_chunks(run, chunks, skipped=skipped)


async def follow_slowly(life: Life, rng: random.Random) -> None:
    """A stream of much, on a connection that takes little."""
    run, body = life.new(flood, rng)
    run.stopped = True
    stream = await clients.connect(life.server, narrow=True)
    try:
        head = life.request("PUT", f"/predictions/{run.id}", body, accept="text/event-stream")
        await stream.send_all(head)
        with trio.move_on_after(rng.uniform(0, 1)):
            while await stream.receive_some(rng.choice((1, 100, 4_096))):
                await trio.sleep(rng.uniform(0, 0.05))
    finally:
        await clients.leave(stream, rng)
    await life.settle(run)


async def read_along_slowly(life: Life, rng: random.Random) -> None:
    """Several follow a run that is nobody's, on connections that take little, and leave: its end is none of theirs."""
    run, body = life.new(flood, rng)

    async def follow() -> None:
        stream = await clients.connect(life.server, narrow=True)
        try:
            await stream.send_all(life.request("GET", f"/predictions/{run.id}", accept="text/event-stream"))
            with trio.move_on_after(rng.uniform(0, 1)):
                while await stream.receive_some(rng.choice((1, 100, 4_096))):
                    await trio.sleep(rng.uniform(0, 0.05))
        finally:
            await clients.leave(stream, rng)

    if life.taken(run, (await life.put(run, body, async_=True)).status_code, async_=True):
        async with trio.open_nursery() as nursery:
            for _ in range(rng.randint(1, 3)):
                nursery.start_soon(follow)
        await life.settle(run)


async def send_half(life: Life, rng: random.Random) -> None:
    """A request that ends in its midst."""
    run, body = life.new(draw, rng)
    run.stopped = True
    whole = life.request("PUT", f"/predictions/{run.id}", body)
    stream = await clients.connect(life.server)
    try:
        await stream.send_all(whole[: rng.randrange(1, len(whole))])
        await trio.sleep(rng.uniform(0, 0.05))
    finally:
        await clients.leave(stream, rng)
    await life.settle(run)
    if run.accepted:
        raise Violation(f"half a request began {run}")


async def send_garbage(life: Life, rng: random.Random) -> None:
    bad = rng.choice((*clients.BAD, rng.randbytes(rng.randrange(1, 2_000))))
    stream = await clients.connect(life.server)
    try:
        await stream.send_all(bad)
        came = await clients.read_all(stream, rng.uniform(0, 0.3))
        if came.startswith(b"HTTP/1.1 5"):
            raise Violation(f"{bad[:100]!r} got {came[:200]!r}")
    except clients.GONE:
        pass
    finally:
        await clients.leave(stream, rng)


async def send_wrong(life: Life, rng: random.Random) -> None:
    method, path, body, status = rng.choice(clients.WRONG)
    reply = await life.client.request(method, path, content=body, headers={"content-type": "application/json"})
    if reply.status_code != status and not (life.refusing and reply.status_code == 503):
        raise Violation(f"{method} {path} {body[:50]!r}: {reply.status_code}, not {status}: {reply.text[:200]}")
    reply.json()


async def look_back(life: Life, rng: random.Random) -> None:
    """An end of some time ago is what it was, or nobody remembers it."""
    over = [run for run in life.ledger.runs.values() if run.end is not None]
    if over:
        run = rng.choice(over[-100:])
        reply = await life.client.get(f"/predictions/{run.id}")
        if reply.status_code == 200:
            life.ledger.ended(run, reply.json())
        elif reply.status_code != 404:
            raise Violation(f"{run}: {reply.status_code}")


async def fetch_one(life: Life, rng: random.Random) -> None:
    """A file from a server that is well, slow, busy, or of no use."""
    await _from_afar(life, rng, fetching)


async def upload_one(life: Life, rng: random.Random) -> None:
    """Files to a server that takes them, at once or in the end, or does not."""
    run = await _from_afar(life, rng, uploading)
    if run.end is not None and run.end["status"] == "succeeded" and run.plan.target:
        wanted = {f"{run.plan.name} file {number}".encode() for number in range(run.plan.files)}
        came = {request.content for request in life.stores.uploads.uploads if run.plan.name in request.content.decode()}
        if came != wanted:
            raise Violation(f"{run} uploaded {came}, not {wanted}")


async def _from_afar(life: Life, rng: random.Random, plan: Callable[[random.Random, str], Plan]) -> Run:
    run, body = life.new(plan, rng)
    async_ = rng.random() < 0.5
    reply = await life.put(run, body, async_=async_)
    if life.taken(run, reply.status_code, async_=async_):
        if rng.random() < 0.2:
            run.stopped = True
            await life.client.post(f"/predictions/{run.id}/cancel")
        if not async_:
            life.ledger.ended(run, reply.json())
        await life.settle(run)
    return run


async def come_back(life: Life, rng: random.Random) -> None:
    """A stream that is lost and taken up again and again: nothing is missing, nothing comes twice."""
    run, body = life.new(steady, rng)
    headers = {"accept": "text/event-stream"}
    numbers: list[int] = []
    chunks: list[object] = []
    left = 0.0
    while run.end is None:
        method = rng.choice(("PUT", "GET")) if numbers else "PUT"
        sent = body if method == "PUT" else None
        async with life.client.stream(method, f"/predictions/{run.id}", headers=headers, json=sent) as reply:
            late = bool(numbers) and trio.current_time() - left > GRACE - 1
            if numbers and reply.status_code != 200 and (late or life.refusing):
                run.stopped = True
                break
            if not life.taken(run, reply.status_code, async_=False):
                return
            run.stopped = run.stopped or late
            stays = rng.uniform(0.02, 0.2) if len(numbers) < 200 and rng.random() < 0.7 else 4 * PATIENCE
            with trio.move_on_after(stays) as bored:
                parser = Parser()
                async for line in reply.aiter_lines():
                    if (event := parser.feed(line)) is None:
                        continue
                    if event.name == "completed":
                        life.ledger.ended(run, event.data)
                    elif event.name == "output":
                        chunks.append(event.data["chunk"])
                    numbers.append(event.number)
                    headers["last-event-id"] = event.id
            if not bored.cancelled_caught and run.end is None:
                if life.ending:
                    return
                raise Violation(f"the stream of {run} ends before it does")
        left = trio.current_time()
        await trio.sleep(rng.uniform(0, 0.1))
    if run.end is not None and not run.stopped:
        check_chunks(run, chunks)
        if numbers != list(range(1, len(numbers) + 1)):
            raise Violation(f"{run} was seen as {numbers}")
    await life.settle(run)


async def try_as_stranger(life: Life, rng: random.Random) -> None:
    """Without the token, or with another one, nothing is to be had."""
    if not life.token:
        return
    method, path = rng.choice(clients.PRIVATE)
    headers = rng.choice(({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {life.token}"}))
    async with httpx.AsyncClient(base_url=life.server.url, timeout=4 * PATIENCE, trust_env=False) as stranger:
        reply = await stranger.request(method, path, content=b'{"input": {"name": "@0@"}}', headers=headers)
    if reply.status_code != 401 or "www-authenticate" not in reply.headers:
        raise Violation(f"a stranger's {method} {path} got {reply.status_code}: {reply.text[:200]}")
    reply.json()
