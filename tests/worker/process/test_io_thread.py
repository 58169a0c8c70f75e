"""The worker around its runs: start, setup, health, protocol faults, files of inputs, shutdown."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
import trio

from cog_trio.bridge.codec import encode_frame
from cog_trio.bridge.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Described,
    Failed,
    Fatal,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Init,
    Kind,
    Log,
    LogSource,
    Predict,
    PredictionId,
    ProtocolVersion,
    Ready,
    Shutdown,
    ShuttingDown,
    SlotId,
)
from tests.worker.executors.test_sync_executor import CODE, write
from tests.worker.rig import alive, open_worker, until


def there(path: Path) -> bool:
    return path.exists()


ECHO = "def Runner(x: int = 1) -> int:\n    return x"


async def test_start_says_who_it_is_and_then_ready(tmp_path: Path) -> None:
    async with open_worker(tmp_path, ECHO, ready=False) as parent:
        assert (await parent.lines[0].hear(ProtocolVersion)).version == PROTOCOL_VERSION
        await parent.tell(Init(predict_ref="predict.py"))
        described = await parent.hear(Described)
        assert (described.kind, described.concurrency, described.has_healthcheck) == (Kind.SYNC, 1, False)
        assert described.pid == parent.process.pid
        assert described.inputs is not None
        assert b'"openapi"' in bytes(described.schema)
        ready = await parent.hear(Ready)
        assert ready.slots == (0,)


@pytest.mark.covers("D21")
async def test_D21_describe_stops_before_setup(tmp_path: Path) -> None:
    source = """
        from cog import BaseRunner
        class Runner(BaseRunner):
            def setup(self) -> None: print("set up")
            def run(self) -> int: return 1
    """
    async with open_worker(tmp_path, source, ready=False) as parent:
        await parent.tell(Init(predict_ref="predict.py", describe=True))
        await parent.hear(Described)
        assert await parent.wait_exit() == 0
        assert not await parent.control.receive()


FAILING = {
    "import": ("print('importing')\nraise ImportError('no such thing')", "ImportError: no such thing"),
    "syntax": ("print('importing'\n", "SyntaxError: "),
    "exit": ("print('importing')\nimport sys; sys.exit(3)", "SystemExit: 3"),
    "setup": (
        "from cog import BaseRunner\nclass Runner(BaseRunner):\n    def setup(self):\n        print('importing')\n"
        "        raise ValueError('bad weights')\n    def run(self) -> int: return 1",
        "ValueError: bad weights",
    ),
    "async setup": (
        "from cog import BaseRunner\nclass Runner(BaseRunner):\n    async def setup(self):\n"
        "        print('importing')\n"
        "        raise SystemExit(4)\n    async def run(self) -> int: return 1",
        "SystemExit: 4",
    ),
    "no runner": ("x = 1\n", "AttributeError: "),
}


@pytest.mark.covers("worker:W6")
@pytest.mark.parametrize("case", FAILING)
async def test_W6_failed_setup_keeps_its_log_and_traceback(tmp_path: Path, case: str) -> None:
    source, error = FAILING[case]
    async with open_worker(tmp_path, source, ready=False) as parent:
        await parent.tell(Init(predict_ref="predict.py"))
        failed = await parent.hear(Failed)
        assert failed.error.startswith(error)
        assert failed.slot is None
        assert await parent.wait_exit() == 0
        log = parent.service_log()
        if "print('importing')" in source:
            assert log.startswith("importing\n")
        assert error in log  # the traceback's last line
        assert "cog_trio/worker" not in log


@pytest.mark.covers("D33")
async def test_D33_sync_model_with_more_slots(tmp_path: Path) -> None:
    async with open_worker(tmp_path, ECHO, ready=False) as parent:
        await parent.tell(Init(predict_ref="predict.py", max_concurrency=2))
        assert "async" in (await parent.hear(Failed)).error


async def test_protocol_version_mismatch_fails_setup(tmp_path: Path) -> None:
    async with open_worker(tmp_path, ECHO, ready=False) as parent:
        await parent.tell(Init(predict_ref="predict.py", protocol_version=99))
        assert "protocol version 99" in (await parent.hear(Failed)).error


@pytest.mark.covers("worker:W7")
async def test_W7_every_line_of_setup_comes_before_ready(tmp_path: Path) -> None:
    source = """
        import os
        from cog import BaseRunner
        class Runner(BaseRunner):
            def setup(self) -> None:
                for n in range(20_000): print(n)
                os.write(1, b"raw\\n")
                os.system("echo child")
                print("no end", end="")
            def run(self) -> int: return 1
    """
    async with open_worker(tmp_path, source) as parent:
        lines = parent.service_log().splitlines()
        assert lines[:20_000] == [str(n) for n in range(20_000)]
        assert sorted(lines[20_000:]) == ["child", "no end", "raw"]


@pytest.mark.covers("worker:W47")
async def test_W47_children_get_no_descriptor_of_ours_and_stdin_is_empty(tmp_path: Path) -> None:
    code = """
import os, subprocess
def run():
    held = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
    return [subprocess.run(["cat"], capture_output=True).stdout.decode(), held.count("socket:"), held]
"""
    async with open_worker(tmp_path, CODE) as parent:
        text, sockets, held = (await parent.run({"code": code})).outputs
        assert text == ""
        assert sockets == 0, held


@pytest.mark.covers("worker:W12")
async def test_W12_polite_signals_are_ignored_but_children_can_be_terminated(tmp_path: Path) -> None:
    code = """
import multiprocessing, os, signal, subprocess, time
def run():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    forked.start()
    forked.terminate()
    forked.join(10)
    return [child.wait(), forked.exitcode]
"""
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": code})).outputs == [-15, -15]


# The parent breaks the protocol.


@pytest.mark.covers("worker:W16")
@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x02{}",
        b"\xff\xff\xff\xff",
        bytes(encode_frame(Predict(SlotId(1), PredictionId("x"), 9, "d"))),
        bytes(encode_frame(Predict(SlotId(0), PredictionId("x"), 9, "d"))),  # neither input nor file
    ],
)
async def test_W16_a_bad_frame_costs_its_slot_and_is_told(tmp_path: Path, frame: bytes) -> None:
    source = "async def Runner(x: int) -> int:\n    return x"
    async with open_worker(tmp_path, source, max_concurrency=2) as parent:
        await parent.lines[0].stream.send_all(frame)
        failed = await parent.hear(Failed)
        assert failed.slot == 0
        assert failed.error.startswith("slot 0 broke: ")
        assert (await parent.run({"x": 7}, slot=1)).outputs == [7]


@pytest.mark.covers("worker:W15")
async def test_W15_predict_for_a_busy_slot_is_answered_and_its_run_is_ended(tmp_path: Path) -> None:
    """In a loop, which reads on while a run is open; a thread that runs sync code does not."""
    source = """
        import asyncio
        async def Runner(x: str = "") -> int:
            try:
                print("go")
                await asyncio.sleep(30)
            finally:
                open(x, "w").close()
    """
    flag = tmp_path / "ended"
    async with open_worker(tmp_path, source) as parent:
        first = await parent.predict({"x": str(flag)})
        await parent.wait_log(first, "go", [])
        await parent.predict()
        failed = await parent.hear(Failed)
        assert (failed.slot, failed.id, failed.run) == (0, first.id, first.run)
        await until(flag.exists)


@pytest.mark.covers("worker:W15")
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_W15_predicts_that_wait_for_no_end_break_their_slot(tmp_path: Path, kind: str) -> None:
    source = f"{kind} Runner(x: int) -> int:\n    return x"
    for first, second in ((1, 2), (2, 2), (2, 1)):  # two at once; the same again; an older one
        async with open_worker(tmp_path, source) as parent:
            if first == 1:
                frames = [
                    encode_frame(Predict(SlotId(0), PredictionId("x"), run, "d", input=msgspec.Raw(b'{"x":1}')))
                    for run in (first, second)
                ]
                await parent.lines[0].stream.send_all(b"".join(frames))
            else:
                assert (await parent.run({"x": 7}, run=first)).outputs == [7]
                await parent.predict({"x": 7}, run=second)
            failed = await parent.hear(Failed)
            assert (failed.slot, failed.error.partition(":")[0]) == (0, "slot 0 broke")
            assert await parent.leave() == 0


@pytest.mark.covers("worker:W17")
async def test_W17_slot_closed_by_the_parent_is_told(tmp_path: Path) -> None:
    async with open_worker(tmp_path, "async def Runner() -> int:\n    return 1", max_concurrency=2) as parent:
        await parent.lines[1].channel.aclose()
        assert (await parent.hear(Failed)).slot == 1
        assert (await parent.run()).outputs == [1]


@pytest.mark.parametrize("line", [b"garbage\n", b'{"type":"init"}\n', b'{"type":"cancel","slot":5,"id":"x","run":1}\n'])
async def test_bad_control_message_is_fatal_and_told(tmp_path: Path, line: bytes) -> None:
    async with open_worker(tmp_path, ECHO) as parent:
        await parent.stream.send_all(line)
        assert "the parent broke the protocol" in (await parent.hear(Fatal)).reason
        assert await parent.wait_exit() == 70


async def test_sockets_that_do_not_come_as_agreed(tmp_path: Path) -> None:
    async with open_worker(tmp_path, "async def Runner() -> int:\n    return 1", ready=False) as parent:
        await parent.tell(Init(predict_ref="predict.py", max_concurrency=2))
        await parent.hear(Described)
        await parent.lines[0].stream.send_all(b"\0")
        assert "sockets of the slots" in (await parent.hear(Fatal)).reason


# The end of the parent, of the run, of the worker.

IDLE, RUN, SETUP, CLEANUP = "idle", "run", "setup", "cleanup"


@pytest.mark.covers("worker:W8")
@pytest.mark.parametrize("state", [IDLE, RUN, SETUP, CLEANUP])
async def test_W8_end_of_control_kills_the_group_in_every_state(tmp_path: Path, state: str) -> None:
    source = """
        import subprocess, time
        from cog import BaseRunner
        class Runner(BaseRunner):
            def setup(self) -> None:
                self.child = subprocess.Popen(["sleep", "60"])
                print("child", self.child.pid, flush=True)
                if STATE == "setup": time.sleep(60)
            def run(self) -> int:
                try:
                    print("go")
                    time.sleep(60)
                finally:
                    time.sleep(60)
    """.replace("STATE", repr(state))
    async with open_worker(tmp_path, source, ready=False) as parent:
        await parent.tell(Init(predict_ref="predict.py"))
        log = await parent.hear(Log, lambda log: "child" in log.data)
        child = int(log.data.split()[1])
        if state != SETUP:
            await parent.hear(Ready)
        if state in (RUN, CLEANUP):
            predict = await parent.predict()
            await parent.wait_log(predict, "go", [])
            if state == CLEANUP:
                await parent.cancel(predict)
        process = parent.process.popen
        assert process.stdin is not None
        process.stdin.close()
        await parent.stream.send_stream.aclose()
        assert await parent.wait_exit() == -9
        await until(lambda: not alive(child))


@pytest.mark.covers("D30")
async def test_D30_shutdown_runs_atexit_and_is_heard_to_the_last(tmp_path: Path) -> None:
    source = """
        import atexit, os, threading, time
        def bye():
            print("bye from python")
            os.system("echo bye from a child")
            os.write(2, b"bye from a descriptor")
            print("no end", end="")
        atexit.register(bye)
        def slow():
            time.sleep(0.2)
            print("bye from a thread")
        def Runner() -> int:
            threading.Thread(target=slow).start()
            return 1
    """
    async with open_worker(tmp_path, source) as parent:
        await parent.run()
        assert await parent.leave() == 0
        assert any(isinstance(message, ShuttingDown) for message in parent.heard)
        log = parent.service_log()
        for text in ("bye from python", "bye from a child", "bye from a descriptor", "no end", "bye from a thread"):
            assert log.count(text) == 1, log


async def test_the_first_health_check_during_the_farewell_cuts_nothing_off(tmp_path: Path) -> None:
    """Python 3.12 starts no thread any more at the interpreter's end, where the model's atexit handlers run."""
    source = """
        import atexit, os
        def bye():
            print("in atexit")
            with open("fifo") as fifo: fifo.read()
            print("last words")
        atexit.register(bye)
        class Runner:
            def healthcheck(self) -> bool: return True
            def run(self) -> int: return 1
    """
    os.mkfifo(tmp_path / "fifo")
    async with open_worker(tmp_path, source) as parent:
        await parent.tell(Shutdown())
        await parent.hear(Log, lambda log: "in atexit" in log.data)
        await parent.tell(Healthcheck("late"))
        result = await parent.hear(HealthcheckResult)
        assert result.error is None or "thread" in result.error
        await write(tmp_path / "fifo")
        await parent.hear(Log, lambda log: "last words" in log.data)
        assert await parent.wait_exit() == 0


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_shutdown_lets_a_run_end(tmp_path: Path, kind: str) -> None:
    source = f"""
        import asyncio, time
        {kind} Runner() -> int:
            print("go")
            {"time.sleep(0.3)" if kind == "def" else "await asyncio.sleep(0.3)"}
            return 1
    """
    async with open_worker(tmp_path, source) as parent:
        predict = await parent.predict()
        await parent.wait_log(predict, "go", [])
        await parent.tell(Shutdown())
        assert (await parent.finish(predict)).outputs == [1]
        assert await parent.wait_exit() == 0


async def test_shutdown_before_init(tmp_path: Path) -> None:
    async with open_worker(tmp_path, ECHO, ready=False) as parent:
        assert await parent.leave() == 0


# Inputs from URLs, and the health check of sync models.


async def test_data_url_is_a_file_that_the_worker_leaves(tmp_path: Path) -> None:
    """W67: the input's path is returned as the output, and is there until the parent removes the folder."""
    source = "from cog import Path\ndef Runner(image: Path) -> Path:\n    return image"
    async with open_worker(tmp_path, source) as parent:
        for _ in range(10):
            outcome = await parent.run({"image": "data:text/plain;base64,aGVsbG8="})
            assert [there(Path(file.filename)) for file in outcome.files] == [True]
            assert outcome.terminal.folder


async def test_input_errors_are_failures_that_name_the_field(tmp_path: Path) -> None:
    source = "from cog import Path\ndef Runner(image: Path) -> str:\n    return image.read_text()"
    async with open_worker(tmp_path, source) as parent:
        error = (await parent.run({"image": "data:text/plain;base64,####"})).error
        assert error.startswith("Input validation error: image: ")
        assert (await parent.run({"image": "data:,hello"})).outputs == ["hello"]


@pytest.mark.covers("D23")
async def test_field_lesson_8_cancel_cuts_a_download(tmp_path: Path) -> None:
    source = "from cog import Path\ndef Runner(image: Path) -> str:\n    return image.read_text()"
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes the connection, never answers
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.png"
        async with open_worker(tmp_path, source) as parent:
            predict = await parent.predict({"image": url})
            connection, _ = await trio.to_thread.run_sync(server.accept)
            with connection:
                await parent.cancel(predict)
                outcome = await parent.finish(predict)
            assert outcome.cancelled
            assert outcome.terminal.folder
            assert (await parent.run({"image": "data:,hello"})).outputs == ["hello"]


@pytest.mark.covers("worker:W64")
async def test_W64_stuck_sync_health_check_is_told_at_once_and_control_goes_on(tmp_path: Path) -> None:
    source = """
        import time
        from cog import BaseRunner
        class Runner(BaseRunner):
            def healthcheck(self) -> bool:
                open("checking", "w").close()
                time.sleep(30)
                return True
            def run(self, x: int) -> int:
                return x
    """
    async with open_worker(tmp_path, source) as parent:
        begin = trio.current_time()
        await parent.tell(Healthcheck("hc_1"))
        for x in range(20):
            assert (await parent.run({"x": x})).outputs == [x]  # W32
        await parent.tell(Healthcheck("hc_2"))
        second = await parent.hear(HealthcheckResult)
        assert trio.current_time() - begin < 4
        first = await parent.hear(HealthcheckResult)
        assert 4.5 < trio.current_time() - begin < 9
        assert (second.id, first.id) == ("hc_2", "hc_1")
        text = "Healthcheck failed: user-defined healthcheck timed out after 5.0 seconds"
        for result in (first, second):
            assert (result.status, result.error) == (HealthcheckStatus.UNHEALTHY, text)


async def test_sync_health_check_beside_a_run(tmp_path: Path) -> None:
    source = """
        import time
        from cog import BaseRunner, current_scope
        class Runner(BaseRunner):
            def healthcheck(self) -> bool:
                print("checking")
                current_scope().record_metric("health", 1)
                return True
            def run(self) -> int:
                print("go")
                time.sleep(30)
    """
    async with open_worker(tmp_path, source) as parent:
        predict = await parent.predict()
        await parent.wait_log(predict, "go", [])
        await parent.tell(Healthcheck("hc_1"))
        assert (await parent.hear(HealthcheckResult)).status is HealthcheckStatus.HEALTHY
        await parent.tell(Cancel(predict.slot, predict.id, predict.run))
        outcome = await parent.finish(predict)
        assert outcome.logs() == ""
        assert outcome.metrics == []
        assert "checking" in parent.service_log()
        assert LogSource.STDERR not in [m.source for m in parent.heard if isinstance(m, Log)]


@pytest.mark.covers("worker:W65")
async def test_W65_no_health_check_is_healthy_without_the_model(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": "import time\ndef run():\n    print('go')\n    time.sleep(30)"})
        await parent.wait_log(predict, "go", [])
        await parent.tell(Healthcheck("hc_1"))
        assert (await parent.hear(HealthcheckResult)).status is HealthcheckStatus.HEALTHY
