"""Answers in the reader's step, and replies that are written by one call later."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.transport.http.protocol.answer_now import Answer, Pending
from cog_trio.transport.http.protocol.connection import serve_connection
from cog_trio.transport.http.protocol.http1_head import RequestHead
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.protocol.test_connection import GET, Receive, Send, reply
from tests.transport.http.support import Client, FakeService, app_of, connect, request


class Quick:
    """Answers /now at once and /later when the test says so; all else comes to the ASGI interface."""

    def __init__(self) -> None:
        self.slow: list[str] = []
        self.pending: list[Pending] = []
        self.gone = 0
        self.body = b"now"

    def answer_now(self, head: RequestHead, body: bytes) -> Answer | Pending | None:
        if head.target == b"/now":
            return Answer(200, [(b"content-length", b"%d" % len(self.body + body))], self.body + body)
        if head.target == b"/later":
            self.pending.append(Pending(self._left))
            return self.pending[-1]
        return None

    def _left(self) -> None:
        self.gone += 1

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.slow.append(scope["path"])
        await reply(send, b"slow")


async def closing(stream: trio.abc.AsyncResource) -> None:
    """Close a stream when the test ends."""
    async with stream:
        await trio.sleep_forever()


LATE = Answer(200, [(b"content-length", b"4")], b"late")


async def test_requests_are_answered_in_order_whichever_way_they_go(nursery: trio.Nursery) -> None:
    app = Quick()
    client = connect(nursery, app)
    wire = [request("GET", "/now"), request("GET", "/slow"), request("POST", "/now", b"!"), request("GET", "/later")]
    await client.send(b"".join(wire * 3))
    for _ in range(3):
        for expected in (b"now", b"slow", b"now!"):
            assert (await client.response()).body == expected
        await trio.testing.wait_all_tasks_blocked()
        (pending,) = app.pending
        app.pending.clear()
        pending.reply(LATE)
        assert (await client.response()).body == b"late"
    assert app.slow == ["/slow"] * 3
    assert app.gone == 0


async def test_only_a_whole_body_is_answered_at_once(nursery: trio.Nursery) -> None:
    app = Quick()
    client = connect(nursery, app)
    await client.send(request("POST", "/now", b"", "content-length: 3") + b"a")
    await trio.testing.wait_all_tasks_blocked()
    await client.send(b"bc")
    assert (await client.response()).body == b"slow"
    await client.send(request("POST", "/now", b"3\r\nabc\r\n0\r\n\r\n", "transfer-encoding: chunked"))
    assert (await client.response()).body == b"nowabc"


@pytest.mark.parametrize("leave", [lambda client: client.stream.send_eof(), lambda client: client.stream.aclose()])
async def test_a_client_that_leaves_is_told_once(
    nursery: trio.Nursery, leave: Callable[[Client], Awaitable[None]]
) -> None:
    app = Quick()
    client = connect(nursery, app)
    await client.send(request("GET", "/later"))
    await trio.testing.wait_all_tasks_blocked()
    assert app.gone == 0
    await leave(client)
    await trio.testing.wait_all_tasks_blocked()
    assert app.gone == 1
    app.pending[0].reply(LATE)
    await trio.testing.wait_all_tasks_blocked()
    assert app.gone == 1


async def test_a_half_closed_client_has_left(nursery: trio.Nursery) -> None:
    """As over ASGI: the request ends, and the connection without a word, also with another request behind it."""
    app = Quick()
    client = connect(nursery, app)
    await client.send(request("GET", "/now") + request("GET", "/later") + request("GET", "/now"))
    await client.stream.send_eof()
    assert (await client.response()).body == b"now"
    assert await client.eof() == b""
    assert app.gone == 1
    app.pending[0].reply(LATE)


@pytest.mark.parametrize("path", ["/now", "/later"])
async def test_the_connection_closes_after_a_reply_if_the_client_wants_that(nursery: trio.Nursery, path: str) -> None:
    app = Quick()
    client = connect(nursery, app)
    await client.send(request("GET", path, b"", "connection: close") + GET)
    await trio.testing.wait_all_tasks_blocked()
    for pending in app.pending:
        pending.reply(LATE)
    assert (await client.response()).headers["connection"] == "close"
    assert await client.eof() == b""
    assert app.slow == []


async def test_a_reply_that_the_socket_does_not_take_is_written_by_a_task(nursery: trio.Nursery) -> None:
    """And nothing overtakes it."""
    app = Quick()
    app.body = b"x" * 5_000_000
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    nursery.start_soon(serve_connection, app, ServerState(Settings()), theirs)
    client = Client(ours)
    nursery.start_soon(closing, ours)
    await client.send(request("GET", "/now") * 2 + request("GET", "/slow"))
    await trio.testing.wait_all_tasks_blocked()
    for expected in (app.body, app.body, b"slow"):
        assert (await client.response()).body == expected


async def test_many_pipelined_requests_give_others_their_turn(nursery: trio.Nursery) -> None:
    app = Quick()
    client = connect(nursery, app)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    await trio.testing.wait_all_tasks_blocked()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            inner.start_soon(other)
            await client.send(request("GET", "/now") * 1000)
            for _ in range(1000):
                assert (await client.response()).status == 200
            inner.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert turns > 1000


async def test_it_costs_no_task_and_one_write(nursery: trio.Nursery) -> None:
    class Tasks(trio.abc.Instrument):
        started = 0

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.started += 1

    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    nursery.start_soon(serve_connection, app_of(FakeService()), ServerState(Settings()), theirs)
    client = Client(ours)
    nursery.start_soon(closing, ours)
    await client.request("GET", "/livez")
    tasks = Tasks()
    trio.lowlevel.add_instrument(tasks)
    try:
        for path in ("/livez", "/readyz", "/health-check", "/openapi.json", "/predictions/a", "/nowhere", "/"):
            for _ in range(3):
                await client.request("GET", path)
    finally:
        trio.lowlevel.remove_instrument(tasks)
    assert tasks.started == 0


async def test_a_fault_of_a_route_is_a_500_and_the_connection_goes_on(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeService):
        def health(self) -> Any:
            raise RuntimeError("bug")

    client = connect(nursery, app_of(Broken()))
    for _ in range(2):
        response = await client.request("GET", "/livez")
        assert (response.status, response.json) == (500, {"detail": "Internal Server Error"})
    assert (await client.request("GET", "/nowhere")).status == 404
    assert caplog.text.count("a route failed: GET /livez") == 2


async def test_both_ways_write_the_same(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    """Replies and lines of the access log do not show which way a request went."""
    caplog.set_level(logging.DEBUG, "cog_trio.access")

    def slow_only(app: Any) -> Any:
        async def call(scope: Any, receive: Receive, send: Send) -> None:
            await app(scope, receive, send)

        return call

    asked = [
        (method, path, *headers)
        for method in ("GET", "HEAD", "POST", "OPTIONS")
        for path in ("/livez", "/readyz", "/health-check", "/", "/predictions/a", "/predictions/a/cancel", "/x", "/%ff")
        for headers in ((), ("origin: http://evil.example",), ("host: evil.example",), ("prefer: wait=0",))
    ]
    answers = []
    for wrapped in (False, True):
        service = FakeService()
        service.create(NewPrediction(id="a"))
        app = app_of(service)
        client = connect(nursery, slow_only(app) if wrapped else app)
        for method, path, *headers in asked:
            response = await client.request(method, path, b"", *headers)
            body = b"" if path == "/predictions/a" else response.body  # which has times in it
            answers.append((response.status, sorted(set(response.headers) - {"date"}), body))
    assert answers[: len(asked)] == answers[len(asked) :]
    lines = [" ".join(record.getMessage().split()[:3]) for record in caplog.records if record.name == "cog_trio.access"]
    assert lines[: len(asked)] == lines[len(asked) :]
    assert len(lines) == 2 * len(asked)
