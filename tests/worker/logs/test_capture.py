"""Whose text is it: real descriptors, threads, children and forks, each story in a process of its own."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cog_trio.bridge.protocol import MAX_LOG_LINE, TRUNCATED, LogLine
from tests.worker.stage import play


@pytest.mark.covers("worker:W43")
def test_W43_descriptors_children_and_c_code_belong_to_the_run_in_the_order_of_writing() -> None:
    seen = play(
        """
        import ctypes, os, subprocess
        print("setup")
        with run("a"):
            print("hello")
            os.write(1, b"raw\\n")
            print("after raw")
            subprocess.run(["echo", "child"])
            print("after child")
            os.system("echo shell")
            ctypes.CDLL(None).puts(b"from C")
            print("after C")
            sys.__stdout__.write("original ")
            sys.__stdout__.write("stream\\n")
            ctypes.CDLL(None).printf(b"no newline")
        print("between")
        with run("b"):
            print("b")
        """
    )
    assert seen.text("a").splitlines() == [
        "hello",
        "raw",
        "after raw",
        "child",
        "after child",
        "shell",
        "from C",
        "after C",
        "original stream",
        "no newline",
    ]
    assert seen.text("b") == "b\n"
    assert seen.log() == "setup\nbetween\n"


@pytest.mark.covers("worker:W43")
def test_W43_descriptor_text_has_its_source() -> None:
    seen = play(
        """
        import os
        with run("a"):
            os.write(2, b"error\\n")
            print("python error", file=sys.stderr)
            os.write(1, b"out\\n")
        """
    )
    assert seen.text("a", "stderr") == "error\npython error\n"
    assert seen.text("a", "stdout") == "out\n"


@pytest.mark.covers("D24")
def test_D24_with_several_slots_descriptor_text_goes_to_the_service_log() -> None:
    seen = play(
        """
        import os
        capture.slots = 2
        with run("a"):
            print("mine")
            os.write(1, b"whose\\n")
        """
    )
    assert seen.text("a") == "mine\n"
    assert seen.log() == "whose\n"


@pytest.mark.covers("worker:W40")
def test_W40_unfinished_lines_never_reach_the_next_run() -> None:
    seen = play(
        """
        import os
        print("setup", end="")
        os.write(1, b"raw setup")
        with run("a"):
            print("a", end="")
            os.write(1, b"raw a")
            os.write(2, "\\u20ac".encode()[:2])
        with run("b"):
            print("b", end="")
            os.write(2, b"\\xac\\n")
        """
    )
    assert sorted([seen.log(), seen.log()]) == ["raw setupsetup"] * 2
    assert sorted(seen.text("a", "stdout")) == sorted("araw a")
    assert seen.text("a", "stderr") == "\ufffd"
    assert seen.text("b") in ("b\ufffd\n", "\ufffd\nb")


@pytest.mark.covers("worker:W41")
def test_W41_progress_is_sent_at_each_return_unchanged() -> None:
    seen = play(
        """
        import sys, time
        with run("a"):
            for n in range(3):
                sys.stderr.write(f"\\r{n * 50}%|###   |")
            sys.stderr.write("\\n")
        """
    )
    assert seen.text("a") == "\r0%|###   |\r50%|###   |\r100%|###   |\n"
    assert len([frame for frame in seen.frames if isinstance(frame, LogLine)]) >= 4


@pytest.mark.parametrize(
    ("ways", "text"),
    [
        ("sys.stdout.write(f'py {n}'); sys.stdout.flush(); print()", "raw {n}\npy {n}\n"),
        ("sys.stdout.write(f'py {n}\\nrest'); print()", "raw {n}\npy {n}\nrest\n"),
        ("sys.stdout.write(f'{n}%\\r'); print()", "raw {n}\n{n}%\r\n"),
        ("sys.stderr.write(f'py {n}'); sys.stderr.flush(); print(file=sys.stderr)", "raw {n}\npy {n}\n"),
        ("sys.stdout.buffer.write(b'py %d' % n); sys.stdout.flush(); print()", "raw {n}\npy {n}\n"),
    ],
    ids=["flush", "newline within", "carriage return", "stderr", "bytes"],
)
def test_python_text_never_overtakes_a_whole_line_of_a_descriptor(ways: str, text: str) -> None:
    seen = play(
        f"""
        import os
        with run("a"):
            for n in range(200):
                os.write(1, b"raw %d\\n" % n)
                {ways}
        """
    )
    assert seen.text("a") == "".join(text.replace("{n}", str(n)) for n in range(200))


@pytest.mark.covers("worker:W42")
def test_W42_threads_pools_and_tasks_carry_their_run() -> None:
    seen = play(
        """
        import asyncio, concurrent.futures, logging, threading
        capture.slots = 2  # nothing is attributed by being alone
        pool = concurrent.futures.ThreadPoolExecutor(1, initializer=print, initargs=("initializer",))
        def say(text): print(text)
        async def main(text):
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(say, f"to_thread of {text}")
            await loop.run_in_executor(pool, say, f"pool of {text}")
            await asyncio.create_task(asyncio.to_thread(say, f"task of {text}"))
        def fail():
            raise ValueError("in a thread")
        for id in ("a", "b"):
            with run(id):
                thread = threading.Thread(target=say, args=(f"thread of {id}",))
                thread.start(); thread.join()
                timer = threading.Timer(0, say, (f"timer of {id}",))
                timer.start(); timer.join()
                list(pool.map(say, [f"map of {id}"]))
                asyncio.run(main(id))
        with run("c"):
            thread = threading.Thread(target=fail)
            thread.start(); thread.join()
        """
    )
    for id in ("a", "b"):
        assert seen.text(id).splitlines() == [
            f"{way} of {id}" for way in ("thread", "timer", "map", "to_thread", "pool", "task")
        ]
    assert "ValueError: in a thread" in seen.text("c", "stderr")
    assert seen.log() == "initializer\n"


@pytest.mark.covers("worker:W42")
def test_W42_a_late_thread_writes_into_no_other_run() -> None:
    seen = play(
        """
        import threading
        go, done = threading.Event(), threading.Event()
        def late():
            print("in time")
            begun.set()
            go.wait()
            print("late", flush=True)
            sys.stderr.write("unfinished")
            done.set()
        begun = threading.Event()
        with run("a"):
            thread = threading.Thread(target=late)
            thread.start()
            begun.wait()
        with run("b"):
            go.set()
            thread.join()
            print("b")
        """
    )
    assert seen.text("a") == "in time\n"
    assert seen.text("b") == "b\n"
    assert seen.log("a") == "late\nunfinished"


@pytest.mark.covers("worker:W42")
def test_W42_two_runs_at_once_keep_their_lines_apart() -> None:
    seen = play(
        """
        import asyncio
        capture.slots = 2
        async def one(id, mine, other):
            record = stage.begin(id)
            stage.set_current(record)
            for n in range(50):
                print(f"{id} begins", end="")
                other.set(); await mine.wait(); mine.clear()
                print(f" and ends {n}")
            other.set()
            return record
        async def main():
            x, y = asyncio.Event(), asyncio.Event()
            tasks = [asyncio.create_task(one("a", x, y)), asyncio.create_task(one("b", y, x))]
            for id, task in zip("ab", tasks):
                record = await task
                capture.detach(record)
        asyncio.run(main())
        """
    )
    lines = "".join(frame.data for frame in seen.frames if isinstance(frame, LogLine)).splitlines()
    for id in ("a", "b"):
        mine = [line for line in lines if line.startswith(id)]
        assert mine == [f"{id} begins and ends {n}" for n in range(50)]
    assert len(lines) == 100


def test_text_of_a_thread_born_in_setup_goes_to_the_only_run() -> None:
    seen = play(
        """
        import queue, threading
        jobs, done = queue.Queue(), queue.Queue()
        def work():
            while True:
                print(jobs.get()); done.put(None)
        threading.Thread(target=work, daemon=True).start()
        with run("a"):
            jobs.put("for a"); done.get()
        jobs.put("for nobody"); done.get()
        """
    )
    assert seen.text("a") == "for a\n"
    assert seen.log() == "for nobody\n"


@pytest.mark.covers("worker:W44")
def test_W44_long_lines_and_characters_of_children_are_whole() -> None:
    seen = play(
        """
        import subprocess
        with run("a"):
            code = 'import sys; sys.stdout.buffer.write(("\\u20ac" * 30000 + "\\\\n").encode() * 20)'
            subprocess.run([sys.executable, "-c", code], check=True)
        """
    )
    assert seen.text("a") == ("\u20ac" * 30000 + "\n") * 20


@pytest.mark.covers("worker:W44")
def test_W44_an_unfinished_line_of_a_child_goes_after_a_moment() -> None:
    """The run waits for what only the I/O thread can have sent: the text arrives while the run is open."""
    seen = play(
        """
        import os, threading
        arrived = threading.Event()
        write = stage.slot.write
        def spy(data):
            write(data)
            if b"Loading" in data: arrived.set()
        stage.slot.write = spy
        with run("a"):
            os.write(1, b"Loading 10%")
            assert arrived.wait(20)
            print(" done")
        """
    )
    assert seen.text("a") == "Loading 10% done\n"


@pytest.mark.covers("worker:W7")
def test_W7_everything_printed_in_setup_arrives_in_order() -> None:
    seen = play(
        """
        import os
        for n in range(20_000): print("line", n)
        for n in range(20_000): os.write(2, b"raw %d\\n" % n)
        """
    )
    assert seen.log().splitlines() == [
        *(f"line {n}" for n in range(20_000)),
        *(f"raw {n}" for n in range(20_000)),
    ]


@pytest.mark.covers("worker:W23")
def test_W23_a_slow_parent_slows_the_writer_and_nothing_is_dropped() -> None:
    """The parent begins to read only when the writer has said, in a file, that it is blocked or done."""
    gate = threading.Event()
    go_r, go_w = os.pipe()

    def read(fd: int) -> bytes:
        if not gate.is_set():
            os.read(go_r, 1)  # the child found its writer full
            os.write(go_w, b"x")
            gate.set()
        return os.read(fd, 2**16)

    os.set_inheritable(go_w, True)
    try:
        seen = play(
            f"""
            import os, subprocess, threading
            wait = stage.slot.wait
            def spy(wake_fd=None):
                if spy.first:
                    spy.first = False
                    os.write(spy.go, b"x")
                assert stage.slot.pending < 2 * 2**20
                wait(wake_fd)
            spy.first, spy.go = True, os.open("/proc/{os.getpid()}/fd/{go_w}", os.O_WRONLY)
            stage.slot.wait = spy
            with run("a"):
                for n in range(100_000): print("line", n)
                subprocess.run([sys.executable, "-c", "for n in range(100_000): print('child', n)"])
            """,
            read=read,
        )
    finally:
        os.close(go_r)
        os.close(go_w)
    assert seen.text("a").splitlines() == [
        *(f"line {n}" for n in range(100_000)),
        *(f"child {n}" for n in range(100_000)),
    ]


@pytest.mark.covers("worker:W19")
def test_W19_huge_lines_do_not_end_logging() -> None:
    seen = play(
        """
        with run("a"):
            print("\\x00" * (3 * 2**20))
            print("x" * (9 * 2**20))
            print("still here")
        print("\\x00" * (3 * 2**20))
        print("y" * (9 * 2**20))
        print("still here")
        """
    )
    for text, letter in ((seen.text("a"), "x"), (seen.log(), "y")):
        zeros, cut, last, rest = text.split("\n")
        assert zeros == "\0" * (3 * 2**20)
        assert cut == letter * (MAX_LOG_LINE - len(TRUNCATED)) + TRUNCATED
        assert (last, rest) == ("still here", "")


@pytest.mark.covers("worker:W45")
def test_W45_forked_children_print() -> None:
    seen = play(
        """
        import logging, multiprocessing, os
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        def work(text):
            print(text)
            logging.warning("log of " + text)
            sys.stdout.buffer.write(b"bytes\\n")
            print("unfinished", end="")
        context = multiprocessing.get_context("fork")
        with run("a"):
            child = context.Process(target=work, args=("process",))
            child.start(); child.join()
            assert child.exitcode == 0
            print("between")
            pid = os.fork()
            if pid == 0:
                print("forked")
                os._exit(0)
            os.waitpid(pid, 0)
        """
    )
    assert seen.text("a", "stdout") == "process\nbytes\nbetween\nunfinishedforked\n"
    assert seen.text("a", "stderr") == "log of process\n"


@pytest.mark.covers("worker:W47")
def test_W47_a_forked_child_holds_nothing_of_the_parents() -> None:
    seen = play(
        """
        import os, signal
        from cog_trio.worker.ipc.message_writer import WriterBroken
        with run("a") as record:
            pid = os.fork()
            if pid == 0:
                null = os.stat(os.devnull)
                for fd in capture.private:
                    assert os.fstat(fd).st_rdev == null.st_rdev
                    assert not os.get_inheritable(fd)
                assert capture.forked
                assert signal.getsignal(stage.gate.signal) is signal.SIG_DFL
                assert not stage.gate.inside
                for writer in (stage.slot, stage.control):
                    try:
                        writer.write(b"garbage")
                    except WriterBroken:
                        continue
                    os._exit(2)
                record.post_frame(bytearray(b"garbage"))
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            print("parent goes on")
        """
    )
    assert seen.text("a") == "parent goes on\n"


@pytest.mark.covers("worker:W45")
def test_W45_fork_while_other_threads_print() -> None:
    seen = play(
        """
        import os, threading
        stop = threading.Event()
        def noise():
            while not stop.is_set(): print("noise")
        with run("a"):
            threads = [threading.Thread(target=noise) for _ in range(2)]
            for thread in threads: thread.start()
            for n in range(20):
                pid = os.fork()
                if pid == 0:
                    print("child", n, file=sys.stderr)
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
            stop.set()
            for thread in threads: thread.join()
        """
    )
    assert seen.text("a", "stderr").splitlines() == [f"child {n}" for n in range(20)]


@pytest.mark.covers("worker:W46")
def test_W46_the_streams_are_complete() -> None:
    seen = play(
        """
        import io
        for stream, fd, name in ((sys.stdout, 1, "<stdout>"), (sys.stderr, 2, "<stderr>")):
            assert isinstance(stream, io.TextIOBase)
            assert (stream.fileno(), stream.name, stream.mode) == (fd, name, "w")
            assert (stream.encoding, stream.errors, stream.newlines) == ("utf-8", "backslashreplace", None)
            assert (stream.isatty(), stream.readable(), stream.writable(), stream.seekable()) == (
                False, False, True, False)
            assert stream.line_buffering is True and stream.write_through is False and stream.closed is False
            assert (stream.buffer.fileno(), stream.buffer.mode, stream.buffer.closed) == (fd, "wb", False)
            stream.reconfigure(line_buffering=False, errors="replace", encoding="latin-1")
            assert stream.encoding == "utf-8" and stream.line_buffering is False
            for wrong in (b"bytes", None, 3):
                try:
                    stream.write(wrong)
                except TypeError:
                    continue
                raise AssertionError(wrong)
            for method in (stream.read, stream.tell, stream.truncate, stream.buffer.read):
                try:
                    method()
                except (io.UnsupportedOperation, OSError):
                    continue
                raise AssertionError(method)
        with run("a"):
            out = sys.stdout
            assert out.write("four") == 4
            out.writelines([" a", " b\\n"])
            out.write("lone \\udc80\\n")
            assert out.buffer.write(memoryview(b"bytes\\n")) == 6
            out.buffer.write("\\u20ac".encode()[:1]); out.buffer.write("\\u20ac\\n".encode()[1:])
            assert out.buffer.raw.write(b"raw\\n") == 4
            with out:
                pass
            out.close()
            out.buffer.close()
            wrapper = io.TextIOWrapper(out.buffer, encoding="utf-8")
            wrapper.write("wrapped\\n")
            del wrapper
            io.TextIOWrapper(out.detach(), write_through=True).write("detached\\n")
            print("open", out.closed)
        """
    )
    assert seen.text("a").splitlines() == [
        "four a b",
        "lone \\udc80",
        "bytes",
        "\u20ac",
        "raw",
        "wrapped",
        "detached",
        "open False",
    ]


@pytest.mark.covers("worker:W46")
def test_W46_handlers_made_at_import_warnings_and_redirection_behave() -> None:
    seen = play(
        """
        import contextlib, io, logging, traceback, warnings
        logging.basicConfig(format="%(levelname)s %(message)s")
        with run("a"):
            logging.warning("logged")
            warnings.warn("warned")
            with contextlib.redirect_stdout(io.StringIO()) as text:
                print("redirected")
            assert text.getvalue() == "redirected\\n"
            with contextlib.redirect_stderr(sys.stdout):
                print("to stdout", file=sys.stderr)
            try:
                1 / 0
            except ZeroDivisionError:
                traceback.print_exc()
        """
    )
    assert seen.text("a", "stdout") == "to stdout\n"
    logged, warned, *trace = seen.text("a", "stderr").splitlines()
    assert logged == "WARNING logged"
    assert "UserWarning: warned" in warned
    assert trace[-1] == "ZeroDivisionError: division by zero"


def test_streams_replaced_in_a_run_are_flushed_and_put_back_those_of_setup_stay() -> None:
    seen = play(
        """
        import io
        class Tee:
            def __init__(self, inner): self.inner = inner
            def write(self, text): return self.inner.write(text.upper())
            def flush(self): self.inner.flush()
        sys.stdout = tee = Tee(sys.stdout)
        with run("a"):
            print("a")
            sys.stdout = io.TextIOWrapper(sys.stderr.buffer)
            sys.stderr = io.StringIO()
            print("kept in a buffer")
        assert sys.stdout is tee and sys.stderr is capture.stderr
        with run("b"):
            print("b")
            class Bad:
                def write(self, text): return len(text)
                def flush(self): raise OSError("no space")
            sys.stdout = Bad()
        """
    )
    assert seen.text("a", "stdout") == "A\n"
    assert seen.text("a", "stderr") == "kept in a buffer\n"
    assert seen.text("b", "stdout") == "B\n"
    assert "OSError: no space" in seen.text("b", "stderr")


def test_in_a_torrent_text_of_descriptors_and_children_keeps_its_place() -> None:
    seen = play(
        """
        import os, subprocess
        with run("a"):
            for n in range(3000):
                print("line", n)
                if n % 100 == 50:
                    os.write(1, b"raw %d\\n" % n)
                if n % 1000 == 999:
                    subprocess.run(["echo", "child", str(n)])
        """
    )
    expected = []
    for n in range(3000):
        expected.append(f"line {n}")
        if n % 100 == 50:
            expected.append(f"raw {n}")
        if n % 1000 == 999:
            expected.append(f"child {n}")
    assert seen.text("a").splitlines() == expected


def test_in_a_torrent_each_write_belongs_to_the_run_of_its_context() -> None:
    """Two runs at once, whose threads print as fast as they can, and one more thread that belongs to neither."""
    seen = play(
        """
        import threading
        capture.slots = 2
        first, second = stage.begin("a"), stage.begin("b")
        def flood(run_log, name):
            stage.set_current(run_log)
            for n in range(3000): print(name, n)
        floods = ((first, "a"), (second, "b"), (None, "-"))
        threads = [threading.Thread(target=flood, args=who) for who in floods]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        capture.detach(first)
        stage.end(second)
        """
    )
    lines = seen.text("b").splitlines()  # one socket for both: the order within each counts
    for name, text in (("a", lines), ("b", lines), ("-", seen.log().splitlines())):
        assert [line for line in text if line.startswith(name)] == [f"{name} {n}" for n in range(3000)]


def test_a_crash_after_a_few_prints_costs_none() -> None:
    seen = play(
        """
        import os, signal
        with run("a"):
            for n in range(30): print("line", n)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        status=-signal.SIGKILL,
    )
    text = "".join(frame.data for frame in seen.frames if isinstance(frame, LogLine))
    assert text.splitlines() == [f"line {n}" for n in range(30)]


def test_what_a_torrent_holds_back_is_sent_while_the_run_computes_on() -> None:
    seen = play(
        """
        import os, signal, time
        with run("a"):
            for n in range(1000): print("line", n)
            end = time.monotonic() + 1
            while time.monotonic() < end: pass
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        status=-signal.SIGKILL,
    )
    text = "".join(frame.data for frame in seen.frames if isinstance(frame, LogLine))
    assert text.splitlines() == [f"line {n}" for n in range(1000)]


def test_prints_in_signal_handlers_and_destructors_inside_prints() -> None:
    seen = play(
        """
        import gc, os, signal, threading, time
        class Loud:
            def __init__(self): self.me = self
            def __del__(self):
                print("del", flush=True)
                os.write(1, b"raw del\\n")
                gone.append(1)
        gone = []
        ticks = 0
        def tick(*_):
            global ticks
            ticks += 1
            print("tick", flush=True)
            if not over:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
        over = False
        gc.set_threshold(1, 1, 1)
        signal.signal(signal.SIGALRM, tick)
        made = 0
        with run("a"):
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            while ticks < 100:
                Loud()
                made += 1
                print("line", made)
                print("error", made, file=sys.stderr)
            over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            while len(gone) < made:  # the I/O thread may be at the last ones: it ends with the process
                gc.collect()
                time.sleep(0.001)
        print("\\nmade", made, ticks, flush=True)
        """
    )
    (counts,) = [line for line in seen.log().splitlines() if line.startswith("made")]
    made, ticks = map(int, counts.split()[1:])
    lines = seen.text("a").splitlines()
    numbers = [line for line in lines if line.startswith("error")]
    assert numbers == [f"error {n}" for n in range(1, made + 1)]
    # on stdout a tick may fall between a line and its newline, as in any program
    text = "".join(lines) + seen.log()
    assert text.count("raw del") == made
    assert text.count("tick") == ticks


def test_exceptions_of_a_users_signal_handler_inside_prints_tear_and_block_nothing() -> None:
    """A time-out by SIGALRM around code that prints: lines may be lost where it struck, nothing else."""
    seen = play(
        """
        import signal, threading
        class Late(Exception): pass
        def tick(*_): raise Late
        signal.signal(signal.SIGALRM, tick)
        hits = 0
        with run("a"):
            for n in range(500):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0003)
                    while True:
                        print("line")
                        print("error", file=sys.stderr)
                except Late:
                    hits += 1
            print()
            thread = threading.Thread(target=print, args=("from a thread",))
            thread.start(); thread.join(20)
            assert not thread.is_alive()
        print("hits", hits)
        """
    )
    assert seen.text("a", "stdout").endswith("\nfrom a thread\n")
    assert seen.log() == "hits 500\n"


@pytest.mark.covers("worker:W27")
def test_W27_a_cancel_that_comes_while_a_print_waits_for_room_ends_the_wait() -> None:
    """The parent reads nothing until the cancel was raised in user code."""
    cancelled_r, cancelled_w = os.pipe()
    open_ = threading.Event()

    def read(fd: int) -> bytes:
        if not open_.is_set():
            os.read(cancelled_r, 1)
            open_.set()
            os.write(cancelled_w, b"x")
        return os.read(fd, 2**20)

    try:
        seen = play(
            f"""
            import os, threading
            gate = stage.gate
            said = os.open("/proc/{os.getpid()}/fd/{cancelled_w}", os.O_WRONLY)
            wait = stage.slot.wait
            def spy(wake_fd=None):
                if not spy.asked:
                    spy.asked = True
                    threading.Thread(target=gate.request, args=(1,)).start()
                wait(wake_fd)
            spy.asked = False
            stage.slot.wait = spy
            with run("a"):
                gate.begin_run(1)
                count = 0
                try:
                    with gate.user_code(1):
                        while True:
                            print("line", count)
                            count += 1
                except KeyboardInterrupt:
                    os.write(said, b"x")
                gate.end_run()
                print("clean-up", count)
            """,
            read=read,
        )
    finally:
        os.close(cancelled_r)
        os.close(cancelled_w)
    *lines, last = seen.text("a").splitlines()
    count = int(last.split()[1])
    assert lines[:count] == [f"line {n}" for n in range(count)]
    assert len(lines) in (count, count + 1)


def test_a_closed_descriptor_does_not_spin_or_stop_the_rest() -> None:
    seen = play(
        """
        import os
        with run("a"):
            os.write(1, b"before\\n")
            os.close(1)
            os.write(2, b"the other\\n")
            print("python")
        with run("b"):
            print("still")
        """
    )
    assert seen.text("a", "stdout") == "before\npython\n"
    assert seen.text("a", "stderr") == "the other\n"
    assert seen.text("b") == "still\n"


@pytest.mark.covers("D30")
def test_D30_the_last_words_of_the_interpreter_arrive() -> None:
    seen = play(
        """
        import atexit, os
        class Last:
            def __del__(self): print("destructor")
        keep = Last()
        def bye():
            print("atexit")
            os.write(1, b"raw atexit\\n")
            print("unfinished", end="")
        atexit.register(bye)
        print("end of main")
        """
    )
    assert seen.log().splitlines()[:3] == ["end of main", "atexit", "raw atexit"]
    assert "unfinished" in seen.log()


def test_setup_children_that_write_for_ever_are_shared_out_and_never_in_the_way() -> None:
    seen = play(
        """
        import subprocess, threading
        child = subprocess.Popen(["sh", "-c", "while echo ping; do :; done"])
        for n in range(20):
            with run(f"run {n}"):
                print("mine", n)
        child.kill(); child.wait()
        """
    )
    for n in range(20):
        lines = seen.text(f"run {n}").splitlines()
        assert lines.count(f"mine {n}") == 1
        assert set(lines) <= {f"mine {n}", "ping"}
