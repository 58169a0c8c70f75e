"""Outputs that are made one after the other: together where they come fast, in order, and none of them late."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from cog_trio.bridge.protocol import (
    FileOutput,
    LogLine,
    LogSource,
    Metric,
    OutputBatch,
    OutputChunk,
    SlotResponse,
)
from tests.worker.executors.test_sync_executor import write
from tests.worker.rig import open_worker

KINDS: Final = {"sync": "def", "async": "async def", "trio": "async def"}
SOURCE: Final = """
    import cog, time
    from typing import Any
    MARK
    DEF Runner(code: str, x: str = "") -> Any:
        space = {"x": x}
        exec(compile("def run():\\n    " + code, "model.py", "exec"), space)
        for item in space["run"](): yield item
"""


def source(kind: str) -> str:
    return SOURCE.replace("MARK", "@cog.trio" if kind == "trio" else "").replace("DEF", KINDS[kind])


def told(frames: list[SlotResponse]) -> list[Any]:
    """What the frames say, in order: outputs as they are, lines, metrics and files by a mark."""
    found: list[Any] = []
    for frame in frames:
        match frame:
            case OutputBatch():
                found += msgspec.json.decode(frame.outputs)
            case OutputChunk():
                found.append(msgspec.json.decode(frame.output))
            case LogLine(source=LogSource.STDOUT):
                found += [f"line {line}" for line in frame.data.splitlines()]
            case Metric():
                found.append(f"metric {msgspec.json.decode(frame.value)}")
            case FileOutput(place=None):
                found.append("file")
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_quick_outputs_travel_together(tmp_path: Path, kind: str) -> None:
    async with open_worker(tmp_path, source(kind)) as parent:
        outcome = await parent.run({"code": "yield from map(str, range(20_000))"})
        assert outcome.outputs == [str(n) for n in range(20_000)]
        assert outcome.indexes == [*range(20_000)]
        assert len(outcome.frames) < 5_000
        assert isinstance(outcome.frames[-1], (OutputBatch, OutputChunk))
        sizes = [len(bytes(frame.outputs)) for frame in outcome.frames if isinstance(frame, OutputBatch)]
        assert max(sizes) < 2**17
        assert await parent.leave() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_outputs_lines_metrics_and_files_keep_one_order(tmp_path: Path, kind: str) -> None:
    code = """import cog, pathlib
    for n in range(300):
        yield n
        yield {'n': n}
        print(n)
        yield 'a' * (8192 if n % 7 == 0 else 3)
        cog.current_scope().record_metric('m', n)
        if n % 50 == 0:
            pathlib.Path(x).write_text('x')
            yield pathlib.Path(x)
        yield None
    raise ValueError('boom')
"""
    expected: list[Any] = []
    for n in range(300):
        expected += [n, {"n": n}, f"line {n}", "a" * (8192 if n % 7 == 0 else 3), f"metric {n}"]
        expected += ["file"] * (n % 50 == 0) + [None]
    async with open_worker(tmp_path, source(kind)) as parent:
        for _ in range(5):
            outcome = await parent.run({"code": code, "x": str(tmp_path / "x.txt")})
            assert told(outcome.frames) == expected
            assert outcome.error == "ValueError: boom"
            indexed = [frame for frame in outcome.frames if isinstance(frame, (OutputBatch, OutputChunk, FileOutput))]
            counts = [frame.count if isinstance(frame, OutputBatch) else 1 for frame in indexed]
            assert [frame.index for frame in indexed] == [sum(counts[:place]) for place in range(len(counts))]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_waits_is_sent_while_the_model_makes_no_more(tmp_path: Path, kind: str) -> None:
    """Nothing but the clock of another thread can do it: the model's blocks."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = "yield 1; yield 2; print('three', end=''); yield 4\n    with open(x) as fifo: fifo.read()\n    yield 5"
    async with open_worker(tmp_path, source(kind)) as parent:
        for _ in range(20):
            predict = await parent.predict({"code": code, "x": str(fifo)})
            frames: list[SlotResponse] = []
            while 4 not in told(frames):
                frames.append(await parent.lines[0].hear(SlotResponse, frames))  # type: ignore[arg-type]  # of any kind
            assert [item for item in told(frames) if isinstance(item, int)] == [1, 2, 4]
            await write(fifo)
            assert 5 in told((await parent.finish(predict)).frames)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_between_two_outputs_takes_no_more(tmp_path: Path, kind: str) -> None:
    code = """import asyncio, itertools, cog, trio
    kinds = (cog.CancelationException, asyncio.CancelledError, trio.Cancelled)
    for n in itertools.count():
        try:
            yield n
        except kinds:
            print('thrown at', n)
            raise
"""
    async with open_worker(tmp_path, source(kind)) as parent:
        for _ in range(10):
            predict = await parent.predict({"code": code})
            await parent.lines[0].hear(OutputBatch)
            await parent.cancel(predict)
            outcome = await parent.finish(predict)
            assert outcome.cancelled
            if "thrown at" in outcome.logs():  # else it came inside of the generator, and hit something else there
                last = int(outcome.logs().split()[-1])
                assert outcome.outputs[-1] in (last, last - 1)  # the last one may be lost on its way to us
        assert (await parent.run({"code": "yield 1"})).outputs == [1]
