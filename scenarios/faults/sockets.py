"""What clients do to a server over WebSockets and HTTP/2, with manners and without."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import trio

from scenarios.faults import clients
from scenarios.faults.acts import check_chunks
from scenarios.faults.ledger import Run, Violation
from scenarios.faults.life import PATIENCE, Life
from scenarios.faults.plans import draw, flood, long
from scenarios.faults.talk import Closed, Talk

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # with empty SETTINGS
WRONG: Final[tuple[tuple[str | bytes, int], ...]] = (  # message, status of the error that it gets
    ("{", 400),
    (b"\xff\xfe", 400),
    ("[]", 422),
    ("[" * 5_000, 400),
    ('{"cancel": 3}', 422),
    ('{"cancel": "nobody"}', 404),
    ('{"input": {"name": 3}}', 422),
    ('{"input": {}, "id": ""}', 422),
)


@asynccontextmanager
async def open_socket(life: Life, rng: random.Random, *, narrow: bool = False) -> AsyncIterator[Talk]:
    """A WebSocket, which is left in some way at the end of the block."""
    stream = await clients.connect(life.server, narrow=narrow)
    try:
        talk = Talk(stream)
        await talk.open("/predictions/ws", ["cog-trio", f"bearer.{life.token}"] if life.token else [])
        yield talk
    finally:
        await clients.leave(stream, rng)


async def _start(life: Life, talk: Talk, run: Run, body: dict[str, Any]) -> bool:
    """Whether it was taken, and goes on."""
    await talk.say(json.dumps({"id": run.id, **body}))
    event = await talk.hear()
    taken = life.taken(run, event["data"]["status"] if event["event"] == "error" else 200, async_=False)
    if event["event"] != "completed":
        return taken
    life.ledger.ended(run, event["data"])  # its worker was lost before it began: no other event comes
    return False


async def _to_the_end(life: Life, talk: Talk, run: Run) -> None:
    chunks: list[object] = []
    number, skipped = 0, False
    while True:
        event = await talk.hear()
        if event["event"] == "error" and "status" in event["data"]:  # it has waited for a slot, for nothing
            run.accepted = False
            life.taken(run, event["data"]["status"], async_=False)
            return
        lost = event["data"].get("skipped", 0) if event["event"] == "error" else 0
        if event["id"] != run.id or (number and event["seq"] != number + (lost or 1)):
            raise Violation(f"event {number} of {run} is followed by {str(event)[:300]}")
        number, skipped = event["seq"], skipped or lost > 0
        if event["event"] == "output":
            chunks.append(event["data"]["chunk"])
        elif event["event"] == "completed":
            life.ledger.ended(run, event["data"])
            check_chunks(run, chunks, skipped=skipped)
            return


async def talk_to_one(life: Life, rng: random.Random) -> None:
    """Runs on one socket, one after the other, each to its end."""
    async with open_socket(life, rng) as talk:
        for _ in range(rng.randint(1, 3)):
            run, body = life.new(draw, rng)
            if await _start(life, talk, run, body):
                await _to_the_end(life, talk, run)
        await talk.close()


async def cancel_by_message(life: Life, rng: random.Random) -> None:
    run, body = life.new(rng.choice((draw, long)), rng)
    run.stopped = True
    async with open_socket(life, rng) as talk:
        if not await _start(life, talk, run, body):
            return
        await trio.sleep(rng.choice((0.0, rng.uniform(0, 0.1))))
        await talk.say(json.dumps({"cancel": run.id}))
        while run.end is None:
            event = await talk.hear()
            if event["event"] == "completed":
                life.ledger.ended(run, event["data"])
            elif event["event"] == "error" and event["data"].get("status", 404) != 404:
                raise Violation(f"cancel of {run} by message: {event}")
        await talk.close()
    await life.settle(run)


async def drop_socket(life: Life, rng: random.Random) -> None:
    """The connection goes in the midst of a run, with a goodbye or without: nobody is left who wants it."""
    run, body = life.new(rng.choice((draw, long)), rng)
    run.stopped = True
    async with open_socket(life, rng) as talk:
        await talk.say(json.dumps({"id": run.id, **body}))
        with trio.move_on_after(rng.choice((0.0, rng.uniform(0, 0.2)))):
            await talk.hear()
        if rng.random() < 0.3:
            await talk.close()
    await trio.sleep(0.01)  # the message may still be on its way in
    await life.settle(run)


async def talk_nonsense(life: Life, rng: random.Random) -> None:
    """Each message that is wrong gets an error, and the conversation goes on; frames that are none end it."""
    async with open_socket(life, rng) as talk:
        for _ in range(rng.randint(1, 4)):
            message, status = rng.choice(WRONG)
            await talk.say(message)
            event = await talk.hear()
            seen = event["data"].get("status")
            if event["event"] != "error" or (seen != status and not (life.refusing and seen == 503)):
                raise Violation(f"{message[:50]!r} got {event}, not {status}")
        if rng.random() < 0.5:
            try:
                await talk.stream.send_all(rng.randbytes(rng.randrange(2, 500)))
                with trio.move_on_after(0.2):
                    await talk.hear()
            except (Closed, *clients.GONE):
                pass
            return
        await talk.close()


async def listen_slowly(life: Life, rng: random.Random) -> None:
    """A stream of much over a WebSocket, on a connection that takes little."""
    run, body = life.new(flood, rng)
    run.stopped = True
    async with open_socket(life, rng, narrow=True) as talk:
        await talk.say(json.dumps({"id": run.id, **body}))
        with trio.move_on_after(rng.uniform(0, 1)):
            while (await talk.hear())["event"] not in ("completed", "error"):
                await trio.sleep(rng.uniform(0, 0.05))
    await life.settle(run)


async def knock_as_stranger(life: Life, rng: random.Random) -> None:
    """A WebSocket without the token, or with another one."""
    if not life.token:
        return
    head = "GET /predictions/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    head += "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    head += rng.choice(("", "sec-websocket-protocol: cog-trio, bearer.x\r\n"))
    stream = await clients.connect(life.server)
    try:
        await stream.send_all(f"{head}\r\n".encode())
        came = await stream.receive_some()
        if not came.startswith(b"HTTP/1.1 401 "):
            raise Violation(f"a stranger's WebSocket got {bytes(came[:200])!r}")
    finally:
        await clients.leave(stream, rng)


async def send_frames(life: Life, rng: random.Random) -> None:
    """HTTP/2 frames of any kind, some of them right."""
    stream = await clients.connect(life.server)
    try:
        frames = bytearray(PREFACE)
        for _ in range(rng.randint(1, 20)):
            body = rng.randbytes(rng.choice((0, 4, 5, 8, rng.randrange(200))))
            size = len(body) if rng.random() < 0.9 else rng.randrange(2**24)
            frames += struct.pack(">I", size)[1:] + bytes((rng.randrange(12), rng.randrange(256)))
            frames += struct.pack(">I", rng.choice((0, 1, 3, rng.randrange(2**31)))) + body
        await stream.send_all(frames)
        await clients.read_all(stream, rng.uniform(0, 0.3))
    except clients.GONE:
        pass
    finally:
        await clients.leave(stream, rng)


async def put_by_http2(life: Life, rng: random.Random) -> None:
    """A run over HTTP/2: to its end, or the stream is reset, or the connection is cut."""
    how = rng.choice(("waits", "waits", "resets", "leaves"))
    run, body = life.new(draw if how == "waits" else long, rng)
    run.stopped = how != "waits"
    stream = await clients.connect(life.server)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    try:
        connection.initiate_connection()
        raw = json.dumps(body).encode()
        head = {":method": "PUT", ":path": f"/predictions/{run.id}", ":scheme": "http", ":authority": "localhost"}
        head |= {"content-type": "application/json", "content-length": str(len(raw)), **life.headers}
        connection.send_headers(1, list(head.items()))
        await _send(connection, stream, raw)
        if how == "waits":
            status, reply = await _reply(connection, stream)
            if life.taken(run, status, async_=False):
                life.ledger.ended(run, json.loads(reply))
            return
        await trio.sleep(rng.uniform(0, 0.1))
        if how == "resets":
            connection.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
            await stream.send_all(connection.data_to_send())
            await trio.sleep(0.05)
    finally:
        await clients.leave(stream, rng)
    await life.settle(run)


async def _send(connection: h2.connection.H2Connection, stream: trio.SocketStream, raw: bytes) -> None:
    """The body, as the windows allow."""
    while raw:
        room = min(connection.local_flow_control_window(1), connection.max_outbound_frame_size)
        if room:
            connection.send_data(1, raw[:room], end_stream=len(raw) <= room)
            raw = raw[room:]
        await stream.send_all(connection.data_to_send())
        if raw and not room:
            connection.receive_data(await _more(stream))


async def _reply(connection: h2.connection.H2Connection, stream: trio.SocketStream) -> tuple[int, bytes]:
    status, body = 0, b""
    with trio.fail_after(3 * PATIENCE):
        while True:
            for event in connection.receive_data(await _more(stream)):
                if isinstance(event, h2.events.ResponseReceived):
                    status = int({str(key): str(value) for key, value in event.headers or ()}[":status"])
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data or b""
                    connection.acknowledge_received_data(event.flow_controlled_length or 0, 1)
                elif isinstance(event, h2.events.StreamEnded):
                    return status, body
                elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                    raise EOFError(repr(event))
            await stream.send_all(connection.data_to_send())


async def _more(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some(2**16)
    if not data:
        raise EOFError("the connection ended")
    return bytes(data)
