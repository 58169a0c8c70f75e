"""Runs of sync models in a real worker: results, streams, failures, and what surrounds them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import trio

from cog_trio.bridge.protocol import (
    MAX_ERROR,
    MAX_INLINE,
    Done,
    FileOutputKind,
    Log,
    LogSource,
    OutputChunk,
    SlotResponse,
)
from tests.worker.rig import LIMIT, open_worker

CODE = """
    from typing import Any
    def Runner(code: str, x: Any = None) -> Any:
        space = {"x": x, "__name__": "model"}
        exec(compile(code, "model.py", "exec"), space)
        return space["run"]()
"""
"""A model that runs the code of its input: one worker for many cases."""


async def write(fifo: Path) -> None:
    """Let a reader of a named pipe go on; it need not be there yet."""
    with trio.fail_after(LIMIT):
        await trio.to_thread.run_sync(lambda: fifo.write_text("go on"), abandon_on_cancel=True)


def read(path: Path) -> bytes:
    return path.read_bytes()


async def test_result_logs_done_idle(tmp_path: Path) -> None:
    async with open_worker(tmp_path, "def Runner(x: int = 3) -> int:\n    print('hi'); return x * 2") as parent:
        outcome = await parent.run({"x": 21})
        assert outcome.outputs == [42]
        assert outcome.logs() == "hi\n"
        assert isinstance(outcome.terminal, Done)
        assert not outcome.terminal.is_stream
        assert 0 <= outcome.terminal.predict_time < 5
        assert (await parent.run()).outputs == [6]


@pytest.mark.covers("worker:W14")
async def test_W14_a_thousand_runs_one_after_the_other(tmp_path: Path) -> None:
    async with open_worker(tmp_path, "def Runner(x: int) -> int:\n    return x") as parent:
        for x in range(1000):
            assert (await parent.run({"x": x})).outputs == [x]


async def test_values_that_are_one_many_or_none(tmp_path: Path) -> None:
    cases: list[tuple[str, list[object], bool]] = [
        ("return None", [], False),
        ("return [1, 'a', None]", [1, "a", None], True),
        ("return (1, 2)", [1, 2], True),
        ("return []", [], True),
        ("return {'a': [1]}", [{"a": [1]}], False),
        ("return set()", [[]], False),
        ("return 10**30", [10**30], False),
        ("yield 1; yield None; yield 'é'", [1, None, "é"], True),
        ("return map(str, range(3))", ["0", "1", "2"], True),
        ("return iter([])", [], True),
    ]
    async with open_worker(tmp_path, CODE) as parent:
        for body, outputs, many in cases:
            outcome = await parent.run({"code": f"def run():\n    {body}"})
            assert outcome.outputs == outputs, body
            assert isinstance(outcome.terminal, Done)
            assert outcome.terminal.is_stream is many, body
            assert outcome.indexes == (
                [*range(len(outputs))] if many else []
            )  # one value leaves with the terminal message


@pytest.mark.covers("worker:W37")
async def test_W37_any_iterator_streams_as_produced_and_is_closed(tmp_path: Path) -> None:
    code = """
class Items:
    def __init__(self): self.left = 3
    def __iter__(self): return self
    def __next__(self):
        if not self.left: raise StopIteration
        if self.left == 2: input_ready()
        self.left -= 1
        return self.left
    def close(self): print("closed")
def input_ready():
    with open(x) as fifo: fifo.read()
def run(): return Items()
"""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code, "x": str(fifo)})
        first = await parent.lines[0].hear(OutputChunk)  # while the model waits for us
        assert bytes(first.output) == b"2"
        await write(fifo)
        outcome = await parent.finish(predict)
        assert outcome.outputs == [1, 0]
        assert outcome.logs() == "closed\n"


FAILURES = (
    ("raise ValueError('boom')", "ValueError: boom"),
    ("raise ValueError('two\\nlines')", "ValueError: two lines"),
    ("raise ValueError", "ValueError"),
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("import sys; sys.exit()", "SystemExit"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("raise type('Odd', (BaseException,), {})('x')", "Odd: x"),
    ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "Mute"),
    ("raise ValueError('\\ud800')", "ValueError: \\ud800"),
    ("return b'x'", "TypeError: a value of type bytes cannot be turned into JSON, at output"),
    ("from cog import CancelationException as C; raise C", "CancelationException"),
    ("raise RuntimeError('was cancelled')", "RuntimeError: was cancelled"),  # W31: no text is searched
)


@pytest.mark.covers("worker:W38")
async def test_W38_failure_is_one_line_and_the_worker_lives(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        for body, error in FAILURES:
            assert (await parent.run({"code": f"def run():\n    {body}"})).error == error
            assert (await parent.run({"code": "def run(): return 1"})).outputs == [1], body


@pytest.mark.covers("worker:W38")
async def test_W38_traceback_on_stderr_without_our_frames(tmp_path: Path) -> None:
    source = "def Runner() -> str:\n    yield 'a'\n    raise ValueError('boom')"
    async with open_worker(tmp_path, source) as parent:
        outcome = await parent.run()
        assert outcome.outputs == ["a"]
        assert outcome.error == "ValueError: boom"
        text = outcome.logs(LogSource.STDERR)
        assert text.startswith("Traceback (most recent call last):\n")
        assert text.endswith("ValueError: boom\n")
        assert "predict.py" in text
        assert "cog_trio" not in text


@pytest.mark.covers("worker:W38")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are built in from 3.11")
async def test_W38_group_names_its_leaves(tmp_path: Path) -> None:
    code = "def run(): raise ExceptionGroup('many', [ValueError('a'), ExceptionGroup('in', [KeyError('b')])])"
    async with open_worker(tmp_path, CODE) as parent:
        error = (await parent.run({"code": code})).error
        assert error == "ExceptionGroup: many (2 sub-exceptions): ValueError: a; KeyError: 'b'"


@pytest.mark.covers("worker:W19")
async def test_W19_huge_error_is_cut(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        error = (await parent.run({"code": "def run(): raise ValueError('é' * 9_000_000)"})).error
        assert error.startswith("ValueError: éé")
        assert MAX_ERROR - 2 <= len(error.encode()) <= MAX_ERROR


@pytest.mark.covers("worker:W35")
async def test_W35_runs_on_the_main_thread_with_the_context_of_setup(tmp_path: Path) -> None:
    source = """
        import signal, threading
        from cog import BaseRunner
        local = threading.local()
        class Runner(BaseRunner):
            def setup(self) -> None:
                local.x = 7
            def run(self) -> list[int]:
                signal.signal(signal.SIGALRM, lambda *_: None)
                return [local.x, threading.current_thread() is threading.main_thread()]
    """
    async with open_worker(tmp_path, source) as parent:
        assert (await parent.run()).outputs == [7, True]


async def test_generator_is_closed_when_an_item_has_no_form(tmp_path: Path) -> None:
    code = """
def run():
    try:
        yield 1
        yield object()
    finally:
        print("closed")
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": code})
        assert outcome.outputs == [1]
        assert outcome.error.startswith("TypeError: a value of type object cannot be turned into JSON, at output[1]")
        assert "closed\n" in outcome.logs(LogSource.STDOUT)


async def test_oversized_value_spills_into_the_runs_folder(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": f"def run(): return ['a', 'x' * {MAX_INLINE}, 'b']"})
        (file,) = outcome.files
        assert outcome.terminal.folder
        assert file.kind.type is FileOutputKind.OVERSIZED
        assert file.index == 1
        assert outcome.indexes == [0, 2]
        path = Path(file.filename)
        assert len(msgspec.json.decode(read(path))) == MAX_INLINE
        assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_returned_file_stays_yielded_file_is_copied(tmp_path: Path) -> None:
    code = """
from pathlib import Path
def run():
    path = Path(x)
    for text in "ab":
        path.write_text(text)
        yield path
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code, "x": str(tmp_path / "same.txt")})
        outcome = await parent.finish(predict)
        assert [read(Path(file.filename)) for file in outcome.files] == [b"a", b"b"]  # W68
        assert [Path(file.filename).name for file in outcome.files] == ["same.txt"] * 2


async def test_spilled_input_is_read_and_left_to_the_parent(tmp_path: Path) -> None:
    spill = tmp_path / "spill.json"
    spill.write_bytes(msgspec.json.encode({"input": {"x": "y" * 100_000}, "context": {"k": "v"}}))
    source = "import cog\ndef Runner(x: str) -> list[str]:\n    return [x[:2], cog.current_scope().context['k']]"
    async with open_worker(tmp_path, source) as parent:
        outcome = await parent.run(input_file=str(spill))
        assert outcome.outputs == ["yy", "v"]
        assert not outcome.terminal.folder
        spill.write_bytes(b'{"input": {')
        outcome = await parent.run(input_file=str(spill))
        assert outcome.error.startswith("Failed to rehydrate input: ")
        spill.unlink()
        assert (await parent.run(input_file=str(spill))).error.startswith("Failed to rehydrate input: FileNotFound")


async def test_input_that_is_no_object(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run([1])).error == "Input validation error: the input must be a JSON object"


async def test_metrics_scope_and_context(tmp_path: Path) -> None:
    code = """
import cog
def run():
    scope = cog.current_scope()
    scope.metrics["a.b"] = 10**30
    scope.record_metric("n", 1, mode="incr")
    del scope.metrics["a.b"]
    try:
        scope.metrics["big"] = "x" * 2**20
    except ValueError as error:
        print(error)
    return scope.context
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": code}, context={"token": "t"})
        assert outcome.metrics == [("a.b", 10**30, "replace"), ("n", 1, "increment"), ("a.b", None, "replace")]
        assert outcome.outputs == [{"token": "t"}]
        assert "over the limit" in outcome.logs()


async def test_unfinished_line_descriptors_and_threads_are_in_before_the_end(tmp_path: Path) -> None:
    code = """
import os, threading
def run():
    thread = threading.Thread(target=lambda: print("thread"))
    thread.start(); thread.join()
    os.write(1, b"raw\\n")
    print("no end", end="")
    os.system("echo child")
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": code})
        assert sorted(outcome.logs().splitlines()) == ["child", "no end", "raw", "thread"]
        assert (await parent.run({"code": "def run(): print('next')"})).logs() == "next\n"  # W40


@pytest.mark.covers("worker:W42")
async def test_W42_late_thread_writes_to_the_service_log(tmp_path: Path) -> None:
    code = """
import threading
def late():
    with open(x) as fifo: fifo.read()
    print("late text")
def run(): threading.Thread(target=late).start()
"""
    first, second = tmp_path / "first", tmp_path / "second"
    os.mkfifo(first)
    os.mkfifo(second)
    async with open_worker(tmp_path, CODE) as parent:
        await parent.run({"code": code, "x": str(first)})
        wait = "def run():\n    print('begun')\n    with open(x) as fifo: fifo.read()"
        predict = await parent.predict({"code": wait, "x": str(second)})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "begun", frames)  # its begin sends what is half written till then
        await write(first)
        log = await parent.hear(Log, lambda log: "late" in log.data)
        assert (log.data, log.id) == ("late text\n", "id1")
        await write(second)
        assert (await parent.finish(predict, frames)).logs() == "begun\n"


@pytest.mark.covers("D15")
async def test_D15_nan_becomes_null_with_one_warning(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": "def run(): return [float('nan'), {'a': float('inf')}]"})
        assert outcome.outputs == [None, {"a": None}]
        assert outcome.logs(LogSource.STDERR).count("\n") == 1


async def test_child_that_user_code_forks_does_not_go_on_as_a_worker(tmp_path: Path) -> None:
    code = """
import os
def run():
    pid = os.fork()
    if pid == 0:
        print("in the child")
        return "child"
    os.waitpid(pid, 0)
    return "parent"
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": code})
        assert outcome.outputs == ["parent"]
        assert outcome.logs() == "in the child\n"  # W45
