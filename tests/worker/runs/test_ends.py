"""However a run ends, its terminal message is the last about it, and its slot is free: for each kind of runner."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from cog_trio.bridge.protocol import Cancel, Fetching, Healthcheck, HealthcheckResult, PredictionId, SlotId
from tests.worker.executors.test_sync_executor import read
from tests.worker.rig import Parent, open_worker, until

KINDS: Final = ("sync", "async", "trio")
HEADS: Final = {"sync": ("", "def"), "async": ("", "async def"), "trio": ("@cog.trio", "async def")}
SOURCE: Final = """
    import cog
    from typing import Any, Optional
    MARK
    DEF Runner(code: str = "", x: str = "", file: Optional[cog.Path] = None) -> Any:
        space = {"x": x, "file": file}
        exec(compile("def run():\\n    " + code, "model.py", "exec"), space)
        LOOP
"""
FULL: Final = 900_000  # bytes of an item behind which others wait for a parent that does not read


def source(kind: str, *, stream: bool = False) -> str:
    mark, start = HEADS[kind]
    if not stream:
        body = "return space['run']()"
    elif kind == "sync":
        body = "yield from space['run']()"
    else:
        body = "for item in space['run'](): yield item"
    return SOURCE.replace("MARK", mark).replace("DEF", start).replace("LOOP", body)


def files_in(folder: str) -> list[str]:
    """Names of the files below a folder."""
    return [name for _, _, names in os.walk(folder) for name in names]


@asynccontextmanager
async def a_worker(folder: Path, kind: str, *, stream: bool = False) -> AsyncIterator[Parent]:
    """A worker that must be able to run one more at the end, and to leave."""
    async with open_worker(folder, source(kind, stream=stream)) as parent:
        yield parent
        outcome = await parent.run({"code": "yield 1" if stream else "return 1"})
        assert outcome.outputs == [1]
        assert not outcome.terminal.folder
        assert await parent.leave() == 0


@pytest.mark.parametrize("stream", [False, True], ids=["value", "item"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_is_over_keeps_nothing_of_itself(tmp_path: Path, kind: str, stream: bool) -> None:
    """Its inputs may be large: they must not wait for the garbage collector."""
    way = "yield" if stream else "return"
    count = f"import gc; gc.disable(); {way} sum(type(one).__name__ == 'Job' for one in gc.get_objects())"
    async with a_worker(tmp_path, kind, stream=stream) as parent:
        seen = [(await parent.run({"code": count})).outputs for _ in range(4)]
    assert seen == [[1]] * 4


LIMITED: Final = """import resource
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    """


@pytest.mark.parametrize("stream", [False, True], ids=["value", "item"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_that_cannot_be_spilled_fails_its_run_at_once(tmp_path: Path, kind: str, stream: bool) -> None:
    """The disk is full, or so it seems."""
    async with a_worker(tmp_path, kind, stream=stream) as parent:
        way = "yield" if stream else "return"
        outcome = await parent.run({"code": LIMITED + f"{way} 'x' * (7 * 2**20)"})
        assert outcome.error == "OSError: [Errno 27] File too large"
        assert outcome.outputs == []
        assert outcome.files == []
        assert outcome.terminal.folder


LARGE: Final = {
    "file": "p = __import__('pathlib').Path(x); p.write_text('a'); yield p",
    "oversized": "yield 'x' * (7 * 2**20)",
    "nested": "p = __import__('pathlib').Path(x); p.write_text('a'); yield {'a': p}",
}


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_while_a_large_item_waits_for_room(tmp_path: Path, kind: str, large: str) -> None:
    """The item is sent whole, or not at all; the end follows."""
    async with a_worker(tmp_path, kind, stream=True) as parent:
        predict = await parent.predict(
            {
                "code": f"yield 'x' * {FULL}; {LARGE[large]}\n    while True: yield 'x' * 100_000",
                "x": str(tmp_path / "a"),
            }
        )
        await until(lambda: files_in(predict.output_dir))
        await parent.cancel(predict)
        outcome = await parent.finish(predict)
        assert outcome.cancelled
        assert outcome.terminal.folder
        assert outcome.outputs[0] == "x" * FULL


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_told_of_a_download_comes_before_the_end(tmp_path: Path, kind: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(2**16)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while True:
                try:
                    await stream.send_all(b"x" * 100)
                except trio.BrokenResourceError:
                    return
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/x"
        async with a_worker(tmp_path, kind) as parent:
            for _ in range(3):
                predict = await parent.predict({"file": url})
                await parent.lines[0].hear(Fetching)
                await parent.cancel(predict)
                outcome = await parent.finish(predict)
                assert outcome.cancelled
                assert outcome.terminal.folder
                assert files_in(predict.output_dir) == ["x"]  # it is the parent's to remove
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_deleted_by_the_worker(tmp_path: Path, kind: str) -> None:
    spill = tmp_path / "spill.json"
    spill.write_text('{"input": {"code": "return file", "file": "data:,hello"}}')
    async with a_worker(tmp_path, kind) as parent:
        predict = await parent.predict(input_file=str(spill))
        (file,) = (await parent.finish(predict)).files
        assert read(Path(file.filename)) == b"hello"
        assert file.filename.startswith(predict.output_dir)
        assert spill.exists()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_cannot_begin_ends_on_its_slot(tmp_path: Path, kind: str) -> None:
    async with a_worker(tmp_path, kind) as parent:
        assert (await parent.run([1])).error == "Input validation error: the input must be a JSON object"
        outcome = await parent.run({"file": "data:text/plain;base64,####"})
        assert outcome.error.startswith("Input validation error: file: ")
        assert outcome.terminal.folder
        assert "Failed to rehydrate input: FileNotFound" in (await parent.run(input_file=str(tmp_path / "none"))).error
        runs = parent.next_run(), parent.next_run()
        await parent.tell(Cancel(SlotId(0), PredictionId(f"id{runs[1]}"), runs[1]))
        await parent.tell(Healthcheck("after"))
        await parent.hear(HealthcheckResult)  # the channels are read in no order: now the cancel has been
        for run in runs:  # a cancel counts for all runs up to its own
            outcome = await parent.finish(await parent.predict({"code": "print('began')"}, run=run))
            assert outcome.cancelled
            assert outcome.logs() == ""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_right_after_predict(tmp_path: Path, kind: str) -> None:
    async with a_worker(tmp_path, kind) as parent:
        for _ in range(30):
            predict = await parent.predict({"code": "import time; time.sleep(30)"})
            await parent.cancel(predict)
            assert (await parent.finish(predict)).cancelled


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_keeps_the_interpreter_to_itself_loses_nothing(tmp_path: Path, kind: str) -> None:
    """C code that keeps the GIL: a cancel is heard when it has ended, and then the end follows."""
    async with a_worker(tmp_path, kind) as parent:
        then = "import time; time.sleep(30)" if kind == "sync" else "return 1"
        code = f"open(x, 'w').close(); sum(range(10**8)); {then}"
        predict = await parent.predict({"code": code, "x": str(tmp_path / "f")})
        await until(lambda: os.path.exists(tmp_path / "f"))
        await parent.cancel(predict)
        assert (await parent.finish(predict)).cancelled
