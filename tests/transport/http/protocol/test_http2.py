"""HTTP/2 by prior knowledge through Hypercorn's own class, and what ours adds to it."""

from __future__ import annotations

from functools import partial
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import trio
import trio.testing
from hyperframe.frame import PingFrame
from priority.priority import PriorityTree

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.connection import PIECE, App, serve_connection
from cog_trio.transport.http.protocol.http2 import Http2
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.protocol.test_connection import Receive, Send, Waiting, hello, reply
from tests.transport.http.support import FakeService, InstantService, app_of


class Ended(Exception):
    """The server closed the connection."""


class Client2:
    """An HTTP/2 client over one stream; collects what comes."""

    def __init__(
        self,
        nursery: trio.Nursery,
        app: App,
        settings: Settings | None = None,
        window: int = 2**20,
        pair: Any = trio.testing.memory_stream_pair,
    ) -> None:
        self.stream, theirs = pair()
        nursery.start_soon(partial(serve_connection, app, ServerState(settings or Settings()), theirs))
        self._begin(window)

    @classmethod
    def over(cls, stream: Any) -> Client2:
        """A client over a stream to a server that is there already."""
        client = cls.__new__(cls)
        client.stream = stream
        client._begin(2**20)
        return client

    def _begin(self, window: int) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.acknowledges = True
        self.status: dict[int, int] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.reset: set[int] = set()

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    async def ask(self, method: str, path: str, body: bytes = b"", *, end: bool = True, **more: str) -> int:
        number: int = self.h2.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        self.h2.send_headers(number, [*headers, *more.items()], end_stream=end and not body)
        if body:
            self.h2.send_data(number, body, end_stream=end)
        await self.flush()
        return number

    async def pump(self) -> None:
        data = await self.stream.receive_some(2**16)
        if not data:
            raise Ended
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.ResponseReceived():
                    self.headers[event.stream_id] = {str(name): str(value) for name, value in event.headers}
                    self.status[event.stream_id] = int(self.headers[event.stream_id][":status"])
                case h2.events.DataReceived():
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                    if self.acknowledges and event.flow_controlled_length:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self.ended.add(event.stream_id)
                case h2.events.StreamReset():
                    self.reset.add(event.stream_id)
        await self.flush()

    async def wait_closed(self) -> None:
        try:
            while True:
                await self.pump()
        except (Ended, trio.BrokenResourceError):
            return

    async def wait(self, number: int) -> int:
        while number not in self.ended | self.reset:
            await self.pump()
        return self.status.get(number, 0)


async def test_requests_over_http2(nursery: trio.Nursery) -> None:
    client = Client2(nursery, app_of(InstantService()))
    assert await client.wait(await client.ask("GET", "/health-check")) == 200
    number = await client.ask("POST", "/predictions", b'{"id":"a"}')
    assert await client.wait(number) == 200
    assert b'"id":"a"' in client.bodies[number]


async def test_a_method_in_lower_case_is_another_method(nursery: trio.Nursery) -> None:
    client = Client2(nursery, app_of(InstantService()))
    for method in ("get", "head"):
        number = await client.ask(method, "/health-check")
        assert await client.wait(number) == 405
        assert client.bodies[number] == b'{"detail":"Method Not Allowed"}'


async def test_a_mebibyte_may_come_ahead_of_what_is_read(nursery: trio.Nursery) -> None:
    """With the 64 KiB that HTTP/2 begins with, a large body costs hundreds of round trips."""
    client = Client2(nursery, app_of(InstantService()))
    assert await client.wait(await client.ask("GET", "/health-check")) == 200
    number = await client.ask("POST", "/predictions", end=False)
    assert client.h2.local_flow_control_window(number) == 2**20
    body = b'{"id":"a","input":{"text":"' + b"x" * (2**20 - 30) + b'"}}'
    for start in range(0, len(body), 2**14):
        client.h2.send_data(number, body[start : start + 2**14], end_stream=start + 2**14 >= len(body))
    await client.flush()
    assert await client.wait(number) == 200
    again = await client.ask("POST", "/predictions", end=False)
    assert client.h2.local_flow_control_window(again) >= 2**19  # what was read was given back to the connection
    assert client.headers[number]["content-length"] == str(len(client.bodies[number]))
    assert "server" not in client.headers[number]


async def test_large_replies_over_http2(nursery: trio.Nursery) -> None:
    async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"x" * 3_000_000)

    client = Client2(nursery, large)
    number = await client.ask("GET", "/")
    assert await client.wait(number) == 200
    assert len(client.bodies[number]) == 3_000_000


async def test_a_body_that_trickles_for_ever_ends_its_stream(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = Client2(nursery, app_of(InstantService()))
    start = trio.current_time()
    number = await client.ask("POST", "/predictions", b" ", end=False)
    for _ in range(15):
        await trio.sleep(20)
        client.h2.send_data(number, b" ")
        await client.flush()
    await client.wait(number)
    assert number in client.reset
    assert trio.current_time() - start == pytest.approx(300 + 16 / 500)
    assert await client.wait(await client.ask("GET", "/health-check")) == 200


async def test_streams_that_write_at_once_lose_nothing(nursery: trio.Nursery) -> None:
    class Slow(trio.abc.SendStream):
        """Lets others run in the middle of each send."""

        def __init__(self, inner: trio.abc.SendStream) -> None:
            self.inner = inner

        async def send_all(self, data: Any) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            await self.inner.send_all(data)

        async def wait_send_all_might_not_block(self) -> None:
            await self.inner.wait_send_all_might_not_block()

        async def aclose(self) -> None:
            await self.inner.aclose()

    def pair() -> tuple[Any, Any]:
        ours, theirs = trio.testing.memory_stream_pair()
        return ours, trio.StapledStream(Slow(theirs.send_stream), theirs.receive_stream)

    async def sized(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"x" * int(scope["raw_path"][1:]))

    client = Client2(nursery, sized, pair=pair)
    numbers = {await client.ask("GET", f"/{size}"): size for size in range(1, 100_000, 9_973)}
    for number, size in numbers.items():
        assert await client.wait(number) == 200
        assert len(client.bodies[number]) == size


async def test_draining_adds_no_connection_header_over_http2(nursery: trio.Nursery) -> None:
    service = FakeService(draining=True)
    client = Client2(nursery, app_of(service))
    number = await client.ask("GET", "/health-check")
    assert await client.wait(number) == 200
    assert "connection" not in client.headers[number]


async def test_data_for_an_answered_stream_is_dropped_and_others_go_on(nursery: trio.Nursery) -> None:
    app = Waiting()

    async def both(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await (app if scope["raw_path"] == b"/wait" else hello)(scope, receive, send)

    client = Client2(nursery, both)
    waiting = await client.ask("GET", "/wait")
    early = await client.ask("POST", "/", b"x", end=False)
    assert await client.wait(early) == 200
    client.h2.send_data(early, b"y" * 1000, end_stream=True)
    await client.flush()
    app.gate.set()
    assert await client.wait(waiting) == 200


@pytest.mark.parametrize("path", ["/\xff", "/a b"])
async def test_a_request_that_is_not_understood_ends_its_stream_only(nursery: trio.Nursery, path: str) -> None:
    client = Client2(nursery, hello)
    client.h2.config.validate_outbound_headers = False
    number = await client.ask("GET", path)
    assert await client.wait(number) == 0
    assert await client.wait(await client.ask("GET", "/")) == 200


@pytest.mark.parametrize("method", ["", "a b", "G\x80T", "é"])
async def test_a_method_that_is_none_ends_its_stream_only(nursery: trio.Nursery, method: str) -> None:
    client = Client2(nursery, hello)
    client.h2.config.validate_outbound_headers = False
    assert await client.wait(await client.ask(method, "/")) == 0
    assert await client.wait(await client.ask("GET", "/")) == 200


async def test_a_list_of_tokens_that_is_no_ascii_ends_its_stream_only(nursery: trio.Nursery) -> None:
    client = Client2(nursery, hello)
    more: Any = {"sec-websocket-protocol": "\xff"}
    number = await client.ask("GET", "/", **more)
    assert await client.wait(number) == 0
    assert await client.wait(await client.ask("GET", "/")) == 200


async def test_a_reset_stream_is_the_end_of_its_client(nursery: trio.Nursery) -> None:
    app = Waiting()
    client = Client2(nursery, app)
    number = await client.ask("GET", "/")
    await trio.testing.wait_all_tasks_blocked()
    client.h2.reset_stream(number)
    await client.flush()
    await trio.testing.wait_all_tasks_blocked()
    assert (app.started, app.gone) == (1, 1)


async def test_a_stream_whose_window_never_opens_is_reset_after_30_s(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"x" * (200_000 if scope["raw_path"] == b"/large" else 2))

    client = Client2(nursery, large, window=70_000)
    client.acknowledges = False
    start = trio.current_time()
    number = await client.ask("GET", "/large")
    await client.wait(number)
    assert number in client.reset
    assert trio.current_time() - start == 30.0


async def test_streams_that_are_given_up_are_forgotten(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them ended the connection: so many has its tree of priorities room for; here it is ten."""
    monkeypatch.setattr("priority.PriorityTree", partial(PriorityTree, maximum_streams=10))

    async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"x" * (2_000 if scope["raw_path"] == b"/large" else 2))

    client = Client2(nursery, large, window=100)
    client.acknowledges = False
    for _ in range(3):
        numbers = [await client.ask("GET", "/large") for _ in range(5)]
        for number in numbers:
            await client.wait(number)
        assert client.reset.issuperset(numbers)
    assert await client.wait(await client.ask("GET", "/")) == 200


async def test_a_client_that_leaves_amid_a_reply_holds_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The app that waits for room in its stream goes on at once, not after the write timeout."""
    gone: list[float] = []

    async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"x" * 2_000_000)
        gone.append(trio.current_time())

    client = Client2(nursery, large, window=70_000)
    client.acknowledges = False
    start = trio.current_time()
    await client.ask("GET", "/")
    await trio.testing.wait_all_tasks_blocked()
    assert gone == []
    await client.stream.aclose()
    await trio.sleep(20)
    assert gone == [start]


async def test_idle_http2_connections_close_after_75_s(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = Client2(nursery, hello)
    await client.wait(await client.ask("GET", "/"))
    start = trio.current_time()
    await client.wait_closed()
    assert trio.current_time() - start == 75.0


async def test_others_have_their_turn_within_a_flood_of_small_frames(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of pings held the loop for most of a second on a busy machine."""
    client = Client2(nursery, hello)
    assert await client.wait(await client.ask("GET", "/")) == 200
    turns: list[int] = []
    handle = Http2.handle

    async def noted(self: Http2, event: Any) -> None:
        turns.append(len(getattr(event, "data", b"")))
        await handle(self, event)

    monkeypatch.setattr(Http2, "handle", noted)
    ping = PingFrame(0)
    ping.opaque_data = b"12345678"
    await client.stream.send_all(ping.serialize() * 3000)
    assert await client.wait(await client.ask("GET", "/")) == 200
    assert max(turns) == PIECE
    assert sum(turns) > 3000 * 17


async def test_bad_frames_end_one_connection(nursery: trio.Nursery) -> None:
    state = ServerState(Settings())
    clients = []
    for _ in range(2):
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(partial(serve_connection, hello, state, theirs))
        clients.append(Client2.over(ours))
    for client in clients:
        assert await client.wait(await client.ask("GET", "/")) == 200
    await clients[0].stream.send_all(b"\x00\x00\x00\x00\x00\x00\x00\x00\x00")
    await clients[0].wait_closed()
    assert clients[0].h2.state_machine.state is h2.connection.ConnectionState.CLOSED, "a GOAWAY came before the end"
    assert await clients[1].wait(await clients[1].ask("GET", "/")) == 200


@pytest.mark.covers("http:W47")
async def test_W47_a_stalled_body_ends_its_stream_after_30_s(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = Client2(nursery, app_of(InstantService()))
    number = await client.ask("POST", "/predictions", b"{", end=False)
    start = trio.current_time()
    await client.wait(number)
    assert number in client.reset
    assert trio.current_time() - start == 30.0
    assert await client.wait(await client.ask("GET", "/")) == 200


@pytest.mark.parametrize(("path", "status"), [("http://localhost/", 400), ("livez", 400), ("*", 400), ("/", 200)])
async def test_a_path_that_is_a_whole_url_is_400(nursery: trio.Nursery, path: str, status: int) -> None:
    client = Client2(nursery, hello)
    number = await client.ask("POST", path, b"x" * 1000)
    assert await client.wait(number) == status
    number = await client.ask("OPTIONS", "*")
    assert await client.wait(number) == 200
