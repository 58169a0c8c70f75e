"""The loopback servers: they note what comes and answer as they are told."""

from __future__ import annotations

import hashlib
import math
import sys
import threading

import h11
import httpx
import pytest
import trio
import trio.testing

from cog_trio.testing import FileServer, Reply, UploadServer, WebhookReceiver, open_webhook_receiver
from cog_trio.testing.clock import threads_hold_the_clock

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=20, trust_env=False)


async def test_the_path_then_the_script_then_the_usual_answer(webhook_receiver: WebhookReceiver) -> None:
    webhook_receiver.usual = Reply(201)
    webhook_receiver.script = [Reply(500), Reply(429, (("retry-after", "1"),))]
    webhook_receiver.replies = {"own": Reply(418)}
    url = webhook_receiver.url
    async with client() as http:
        seen = [await http.post(f"{url}{path}", json={"id": "a"}) for path in ("/", "/own?x=1", "/", "/", "/")]
    assert [reply.status_code for reply in seen] == [500, 418, 429, 201, 201]
    assert seen[2].headers["retry-after"] == "1"
    assert [request.path for request in webhook_receiver.came] == ["/", "/own?x=1", "/", "/", "/"]
    assert webhook_receiver.came[0].headers["content-type"] == "application/json"


async def test_states_of_one_prediction_and_its_end(webhook_receiver: WebhookReceiver) -> None:
    """Given webhooks of two predictions, then each can be told apart, and its end be waited for."""
    url = webhook_receiver.url

    async def tell() -> None:
        async with client() as http:
            for id, status in (("a", "starting"), ("b", "succeeded"), ("a", "failed"), ("a", "failed")):
                await http.post(url, json={"id": id, "status": status})

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            assert len(await webhook_receiver.until("b")) == 1
            assert len(await webhook_receiver.until("a", 2)) == 3
    assert [state["status"] for state in webhook_receiver.states("a")] == ["starting", "failed", "failed"]
    assert len(webhook_receiver.ends("a")) == 2
    with pytest.raises(AssertionError, match="the end of c was told 0 times"):
        await webhook_receiver.until("c", seconds=0.05)


async def test_answers_that_are_late_that_stop_and_that_never_come(file_server: FileServer) -> None:
    data = b"0123456789"
    late, stops = file_server.add("late", data, Reply(delay=0.2)), file_server.add("stops", data, Reply(stalls=True))
    closes, never = (
        file_server.add("closes", data, Reply(closes=True)),
        file_server.add("never", reply=Reply(delay=math.inf)),
    )
    with trio.fail_after(20):
        async with client() as http:
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(http.get, late)
                nursery.start_soon(http.get, late)
            assert trio.current_time() - began >= 0.2
            assert file_server.most == 2
            assert (await http.get(late)).content == data
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get(closes)
            async with http.stream("GET", stops) as reply:
                parts = reply.aiter_bytes()
                assert await anext(parts) == data[:5]
                with trio.move_on_after(0.1) as limit:
                    await anext(parts)
                assert limit.cancelled_caught
            with trio.move_on_after(0.1) as limit:
                await http.get(never)
            assert limit.cancelled_caught
            assert (await http.get(f"{file_server.url}/nowhere")).status_code == 404
            assert (await http.head(late)).headers["content-length"] == "10"


async def test_uploads_are_hashed_and_kept_up_to_a_size(
    upload_server: UploadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given uploads of which one is refused and one is long, then those that were taken are told by name and hash."""
    monkeypatch.setattr("cog_trio.testing.loopback.KEPT", 10)
    upload_server.replies = {"refused.txt": Reply(403)}
    async with client() as http:
        for name, data in (("a.txt", b"short"), ("refused.txt", b""), ("long.txt", b"x" * 11)):
            await http.put(f"{upload_server.url}/{name}?key=1", content=data)
    short, long = upload_server.uploads
    assert (short.path, short.content) == ("/a.txt?key=1", b"short")
    assert (long.size, long.sha256) == (11, hashlib.sha256(b"x" * 11).hexdigest())
    with pytest.raises(ValueError, match="a body of 11 bytes is not kept"):
        _ = long.content


async def test_a_client_that_speaks_nonsense_or_leaves_harms_nobody(file_server: FileServer) -> None:
    url = file_server.add("a", b"data")
    for sent in (b"\0\xff\r\n\r\n", b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nx", b""):
        async with await trio.open_tcp_stream("127.0.0.1", file_server.port) as stream:
            await stream.send_all(sent)
    async with client() as http:
        assert (await http.get(url)).content == b"data"
    assert file_server.paths == ["/a"]


async def test_a_reply_that_is_no_http_is_the_tests_own_fault() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_webhook_receiver(Reply(200, (("bad name", "x"),))) as receiver, client() as http:
            await http.post(receiver.url)
    assert caught.group_contains(h11.LocalProtocolError)


async def test_what_the_block_raises_passes_as_it_was() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_webhook_receiver():
            raise KeyError("mine")


async def test_a_fake_clock_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(RuntimeError, match="works in real time, but this test has a fake clock"):
        async with open_webhook_receiver():
            pass


async def test_the_clock_stands_while_a_thread_works(autojump_clock: trio.testing.MockClock) -> None:
    """Given a fake clock, when a thread works with a deadline beside it, then the deadline does not come first."""
    gate = threading.Event()
    with threads_hold_the_clock():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, gate.wait, 20)
            with trio.move_on_after(1) as limit:
                await trio.to_thread.run_sync(gate.wait, 0.05)
            assert not limit.cancelled_caught
            assert trio.current_time() == 0
            gate.set()
        await trio.sleep(3600)
    assert trio.current_time() == 3600
