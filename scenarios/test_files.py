"""Files: fetched for inputs, sent as outputs, uploaded; what fails, what is cut, and what must be left: nothing."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import time
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import trio

from cog_trio.testing import FileServer, Reply, ServeModel, Server, UploadServer
from cog_trio.testing.processes import POLL
from cog_trio.testing.server_process import SOON
from scenarios.processes import worker_of

MIB = 2**20
MODEL = "files.py"
INNER = ("localhost", "127.0.0.1", "[::1]", "127.1", "0.0.0.0", "169.254.169.254", "10.0.0.1")


async def run(server: Server, what: str, **input: Any) -> dict[str, Any]:
    reply = await server.predict({"what": what, **input})
    assert reply.status_code == 200, reply.text[:500]
    prediction = reply.json()
    assert isinstance(prediction, dict)
    return prediction


def leftovers(server: Server) -> list[str]:
    """Everything of ours in the temporary folder, beside the base itself and what the model made in setup."""
    (base,) = server.temporary.glob("cog-trio-*")
    others = [path for path in server.temporary.iterdir() if path != base and not path.name.startswith("model-")]
    # by walk: it does not mind a folder that is removed meanwhile
    ours = [os.path.join(folder, name) for folder, *names in os.walk(base) for name in (*names[0], *names[1])]
    return sorted([*ours, *map(str, others)])


async def nothing_is_left(server: Server) -> None:
    """The end of a run does not wait for its folder, which goes soon after it."""
    with trio.move_on_after(20):
        while leftovers(server):
            await trio.sleep(0.02)
    assert leftovers(server) == []


# Inputs.


async def test_eight_slow_inputs_are_fetched_together(serve_model: ServeModel, file_server: FileServer) -> None:
    """Given eight URLs that each answer after 1 s, when they are the inputs of one prediction, then it runs long
    before the eight seconds that they would take one by one, with all of them in order, and nothing is left."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            await run(server, "inputs", images=[file_server.add("warm", b"warm")])
            began = time.time()
            slow = [file_server.add(f"{number}", b"%d" % number, Reply(delay=1)) for number in range(8)]
            done = await run(server, "inputs", images=slow)
            assert done["output"] == [str(number) for number in range(8)]
            started = float(done["logs"].split("started ")[1].split()[0])
            assert 1.0 <= started - began < 6.0
            await nothing_is_left(server)


async def test_a_stalled_server_is_ended_by_the_limit(serve_model: ServeModel, file_server: FileServer) -> None:
    """Given a server that stops half-way and --download-timeout 1, when an input is fetched, then the prediction
    fails after about a second and names input and URL without its password; nothing is left."""
    half = file_server.add("half/image.png", b"image.png", Reply(stalls=True))
    url = f"{half.replace('://', '://user:secret@')}?signature=secret"
    with trio.fail_after(60):
        async with serve_model(MODEL, "--download-timeout", "1") as server:
            began = time.monotonic()
            done = await run(server, "input", image=url)
            assert time.monotonic() - began < SOON
            assert done["status"] == "failed"
            assert done["error"].startswith("Input validation error: image: not there within 1 s")
            assert half in done["error"]
            assert "secret" not in done["error"]
            await nothing_is_left(server)
            assert (await run(server, "nothing"))["output"] == "ok"


async def test_cancel_during_a_download_is_at_once(serve_model: ServeModel, file_server: FileServer) -> None:
    """Given a download that hangs, when the prediction is cancelled after 0.5 s, then it is canceled soon, the slot
    is free and nothing is left."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            half = file_server.add("image.png", b"image.png", Reply(stalls=True))
            await server.start("slow", {"what": "input", "image": half})
            await trio.sleep(0.5)
            began = time.monotonic()
            assert await server.cancel("slow") == 200
            assert (await server.finished("slow"))["status"] == "canceled"
            assert time.monotonic() - began < SOON
            await nothing_is_left(server)
            assert (await run(server, "nothing"))["output"] == "ok"


async def test_one_failed_input_cuts_its_siblings(serve_model: ServeModel, file_server: FileServer) -> None:
    """Given one input that is not there and one that takes for ever, then the prediction fails at once and names
    the first; nothing is left."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            images = [file_server.add("a", b"a", Reply(delay=50)), f"{file_server.url}/gone/b?key=secret"]
            done = await run(server, "inputs", images=images)
            assert done["status"] == "failed"
            assert done["error"] == (
                f"Input validation error: images[1]: the server answered 404 Not Found ({file_server.url}/gone/b?...)"
            )
            await nothing_is_left(server)


async def test_input_hosts_hold_for_the_first_url_and_for_redirects(
    serve_model: ServeModel, file_server: FileServer
) -> None:
    """Given --input-hosts localhost, when a URL names 127.0.0.1 or leads there, then the prediction fails, names the
    host, and the server was not asked for the file; by its allowed name it is fetched."""
    there = file_server.add("image.txt", b"image.txt")
    file_server.add("moved", reply=Reply(302, (("location", there),)))
    with trio.fail_after(60):
        async with serve_model(MODEL, "--input-hosts", "localhost") as server:
            for url in (there, f"http://localhost:{file_server.port}/moved"):
                done = await run(server, "input", image=url)
                assert done["status"] == "failed"
                assert "--input-hosts does not allow the host 127.0.0.1" in done["error"]
                assert "/image.txt" not in file_server.paths
            done = await run(server, "input", image=f"http://localhost:{file_server.port}/image.txt")
            assert done["status"] == "succeeded", done["error"]


async def test_public_refuses_what_is_not(serve_model: ServeModel, file_server: FileServer) -> None:
    """Given COG_TRIO_INPUT_HOSTS=public, when a URL names a host of an inner network, in whatever spelling, then
    nothing is connected to and the prediction fails."""
    with trio.fail_after(60):
        async with serve_model(MODEL, env={"COG_TRIO_INPUT_HOSTS": "public"}) as server:
            for host in INNER:
                done = await run(server, "input", image=f"http://{host}:{file_server.port}/image.txt")
                assert done["status"] == "failed", host
                assert "--input-hosts does not allow the host" in done["error"], host
            assert file_server.came == []


# Outputs.


@pytest.mark.covers("worker:W67")
async def test_W67_an_input_is_the_output_fifty_times(serve_model: ServeModel) -> None:
    """Given a model that returns its input file, when it runs 50 times, then each output is that file."""
    url = "data:image/png;base64," + base64.b64encode(os.urandom(50_000)).decode()
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for _ in range(50):
                assert (await run(server, "input", image=url))["output"] == url
            assert (await run(server, "twice", image=url))["output"] == [url, url]
            await nothing_is_left(server)


async def test_a_child_that_still_writes_beside_an_input_costs_nothing(serve_model: ServeModel) -> None:
    """Given a model that leaves a child behind which writes beside the input, when its run ends and the folder is
    removed, then the run succeeds, the same worker serves the next one, and the folder is gone soon after the child."""
    url = "data:text/plain;base64,aGVsbG8="
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            worker = worker_of(server).pid
            for _ in range(3):
                done = await run(server, "leave_a_writer", image=url)
                assert (done["status"], done["output"]) == ("succeeded", "left")
            assert (await run(server, "input", image=url))["output"] == url
            assert worker_of(server).pid == worker
            assert (await server.health())["status"] == "READY"
            await nothing_is_left(server)


@pytest.mark.covers("worker:W51")
async def test_W51_files_inside_values_without_uploads(serve_model: ServeModel) -> None:
    """Given a result with files in a dataclass and in a list in a list, one of them over the size of a frame, then
    each is a data URL in its place."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            done = await run(server, "nested", size=9 * MIB)
            assert done["status"] == "succeeded", done["error"]
            assert done["output"]["picture"] == {"image": "data:text/plain;base64,YQ==", "title": "t"}
            (text,), image = done["output"]["more"]
            assert text == "data:application/octet-stream;base64,w6k="
            assert base64.b64decode(image.removeprefix("data:image/png;base64,")) == b"b" * (9 * MIB)
            await nothing_is_left(server)


@pytest.mark.covers("worker:W68")
async def test_W68_a_file_that_is_overwritten_between_yields(serve_model: ServeModel) -> None:
    """Given a generator that yields one path again and again, overwriting it, then each output is what it held."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            output = (await run(server, "overwritten", size=20))["output"]
        assert [base64.b64decode(item.partition(",")[2]) for item in output] == [b"%d" % n for n in range(20)]


@pytest.mark.covers("worker:W48")
async def test_W48_a_missing_file_is_named(serve_model: ServeModel) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            done = await run(server, "missing")
            assert done["status"] == "failed"
            assert "/nowhere/missing.png" in done["error"]


async def test_strings_of_64_mib_both_ways(serve_model: ServeModel) -> None:
    """Given the default settings, when a text of 64 MiB goes in and comes out, then it is the same text."""
    text = "0123456789abcdef" * (4 * MIB)
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            reply = await server.predict({"text": text})
            assert reply.status_code == 200
            assert reply.json()["output"] == text
            assert list(next(server.temporary.glob("cog-trio-*")).rglob("*")) == []


# Uploads.


async def test_an_upload(serve_model: ServeModel, upload_server: UploadServer) -> None:
    """Given --upload-url, when a model returns files, then they are put there with type, length, id and trace, and
    the output is their URLs."""
    with trio.fail_after(60):
        async with serve_model(MODEL, "--upload-url", f"{upload_server.url}/up?key=secret") as server:
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            body = {"id": "p1", "input": {"what": "one", "text": "a b#c.png", "size": 5}}
            headers = {"traceparent": trace, "tracestate": "k=v"}
            done = (await server.client.post("/predictions", json=body, headers=headers)).json()
            assert done["output"] == f"{upload_server.url}/up/a%20b%23c.png"
            (put,) = upload_server.uploads
            assert (put.path, put.size) == ("/up/a%20b%23c.png?key=secret", 5)
            sent = [put.headers.get(name) for name in ("content-type", "x-prediction-id", "traceparent", "tracestate")]
            assert sent == ["image/png", "p1", trace, "k=v"]
            done = await run(server, "nested")
            assert done["output"] == {
                "picture": {"image": f"{upload_server.url}/up/a%20b%23c.txt", "title": "t"},
                "more": [[f"{upload_server.url}/up/0.bin"], f"{upload_server.url}/up/b.png"],
                "n": 1,
            }
            first, second = (await run(server, "same"))["output"]
            assert first == f"{upload_server.url}/up/out.txt"
            assert first != second
            await nothing_is_left(server)


async def test_uploads_that_end_in_reverse(serve_model: ServeModel, upload_server: UploadServer) -> None:
    """Given three uploads of which the last is done first, then the output has the order of the model."""
    upload_server.replies = {"a.txt": Reply(delay=0.6), "b.txt": Reply(delay=0.3)}
    with trio.fail_after(60):
        async with serve_model(MODEL, "--upload-url", upload_server.url) as server:
            done = await run(server, "several", text="a,b,c")
            assert done["output"] == [f"{upload_server.url}/{name}.txt" for name in "abc"]
            assert [put.path for put in upload_server.uploads] == ["/c.txt", "/b.txt", "/a.txt"]


async def test_a_server_that_recovers(serve_model: ServeModel, upload_server: UploadServer) -> None:
    """Given an upload server that says 500, 500, 200, then the prediction succeeds."""
    upload_server.script = [Reply(500), Reply(500), Reply(201)]
    with trio.fail_after(60):
        async with serve_model(MODEL, "--upload-url", upload_server.url) as server:
            done = await run(server, "one")
            assert (done["status"], done["output"]) == ("succeeded", f"{upload_server.url}/out.bin")
            assert len(upload_server.came) == 3


async def test_a_server_that_never_answers(serve_model: ServeModel, upload_server: UploadServer) -> None:
    """Given an upload server that says nothing and --upload-timeout 0.5, then the prediction fails within its three
    tries, and the slot is free."""
    upload_server.usual = Reply(delay=math.inf)
    with trio.fail_after(60):
        async with serve_model(MODEL, "--upload-url", upload_server.url, "--upload-timeout", "0.5") as server:
            began = time.monotonic()
            done = await run(server, "one")
            assert 3 * 0.5 < time.monotonic() - began < SOON
            assert done["status"] == "failed"
            assert done["error"] == (
                f"Failed to upload output: out.bin: no progress for 0.5 s ({upload_server.url}/out.bin)"
            )
            assert (await run(server, "nothing"))["output"] == "ok"
            assert (await server.health())["status"] == "READY"
            await nothing_is_left(server)


async def test_cancel_cuts_an_upload(serve_model: ServeModel, upload_server: UploadServer) -> None:
    """Given an upload that hangs, when the prediction is cancelled, then it is canceled soon and the slot free."""
    upload_server.usual = Reply(delay=math.inf)
    with trio.fail_after(60):
        async with serve_model(MODEL, "--upload-url", upload_server.url) as server:
            for what in ("one", "stuck"):
                await server.start(what, {"what": what})
                await trio.sleep(0.5)
                began = time.monotonic()
                assert await server.cancel(what) == 200
                assert (await server.finished(what))["status"] == "canceled"
                assert time.monotonic() - began < SOON
            assert (await run(server, "nothing"))["output"] == "ok"
            await nothing_is_left(server)


async def test_a_large_upload_takes_no_memory(serve_model: ServeModel, upload_server: UploadServer) -> None:
    """Given an output file of 512 MiB, when it is uploaded, then the parent's memory rises by less than 32 MiB."""
    size = 512 * MIB
    peak = 0

    async def watch(process: psutil.Process) -> None:
        nonlocal peak
        while True:
            peak = max(peak, process.memory_info().rss)
            await trio.sleep(POLL)

    with trio.fail_after(60):
        async with serve_model(MODEL, "--upload-url", upload_server.url) as server:
            await run(server, "one")
            process = psutil.Process(server.process.pid)
            before = process.memory_info().rss
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, process)
                began = time.monotonic()
                done = await run(server, "sparse", size=size)
                taken = time.monotonic() - began
                nursery.cancel_scope.cancel()
            assert done["output"] == f"{upload_server.url}/sparse.bin"
            put = upload_server.uploads[-1]
            assert (put.size, put.sha256) == (size, hashlib.sha256(bytes(size)).hexdigest())
            print(f"512 MiB in {taken:.1f} s; memory rose by {(peak - before) / MIB:.1f} MiB")
            assert peak - before < 32 * MIB


# What stays.


@pytest.mark.covers("http:W4", "worker:W21", "lesson:35")
async def test_W21_an_id_makes_no_folder(serve_model: ServeModel, tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            before = {str(path) for path in tmp_path.rglob("*")}
            for id in ("../../x", "/etc/x", "a/../../b", "..", "x" * 256):
                done = (await server.predict({"what": "one"}, id=id)).json()
                assert (done["status"], done["id"]) == ("succeeded", id)
                assert {str(path) for path in tmp_path.rglob("*")} - before <= {
                    str(path) for path in server.temporary.glob("model-*/*")
                }, id


@pytest.mark.covers("http:W5")
async def test_W5_a_bad_id_costs_no_slot(serve_model: ServeModel) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for id in ("x" * 5000, "a\0b", "a\nb", ""):
                assert (await server.predict({"what": "nothing"}, id=id)).status_code == 422, id
                assert (await run(server, "nothing"))["output"] == "ok"


MANY: Final = 1000 if "COG_TRIO_SOAK" in os.environ else 400


@pytest.mark.timeout(180)
async def test_hundreds_of_predictions_with_files_leave_nothing(
    serve_model: ServeModel, file_server: FileServer, upload_server: UploadServer
) -> None:
    """Given 400 predictions (1,000 in make soak), each with a fetched and an inline file as input and three uploaded
    files as output, then from the 100th on (as many finished ones are kept as ever will be) neither descriptors nor
    folders nor the memory of parent or worker grow: by less than a third of what the inline files alone would take."""
    inline = "data:image/png;base64," + base64.b64encode(os.urandom(80_000)).decode()
    figures: dict[int, tuple[list[int], list[int]]] = {}
    flags = ("--upload-url", upload_server.url, "--no-access-log", "--retain", "50")
    with trio.fail_after(150):
        async with serve_model(MODEL, *flags) as server:
            processes = [psutil.Process(server.process.pid), worker_of(server)]
            for number in range(1, MANY + 1):
                what = ("twice", "nested", "overwritten", "temporary")[number % 4]
                images = [inline, file_server.add(f"{number}", b"%d" % number)]
                done = await run(server, what, image=inline, images=images, size=3)
                assert done["status"] == "succeeded", done
                if number in (100, MANY):
                    await nothing_is_left(server)  # no folder is being removed, which takes descriptors
                    figures[number] = (
                        [process.num_fds() for process in processes],
                        [process.memory_info().rss for process in processes],
                    )
            await nothing_is_left(server)
    (before_fds, before_rss), (after_fds, after_rss) = figures[100], figures[MANY]
    grown = [(after - before) / MIB for before, after in zip(before_rss, after_rss, strict=True)]
    print(f"descriptors {before_fds} to {after_fds}; memory grew by {grown[0]:.1f} and {grown[1]:.1f} MiB")
    assert after_fds == before_fds
    assert all(growth < 8 for growth in grown)


async def test_a_base_that_a_killed_server_left_is_swept(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a folder of a server that was killed, when the next one starts, then it is removed."""
    left = tmp_path / "cog-trio-0123456789abcdef"
    left.mkdir()
    (left / "big").write_bytes(b"x")
    with trio.fail_after(60):
        async with serve_model(MODEL, temporary=tmp_path):
            while left.exists():
                await trio.sleep(POLL)
