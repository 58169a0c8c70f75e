"""``cog-trio run`` and ``train`` of models that are here: real processes, pipes and a terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Final

import pytest
import trio

from cog_trio.testing.file_servers import open_file_server
from cog_trio.testing.loopback import Reply
from scenarios.commands import open_command, run_command
from scenarios.places import EXAMPLES, MODELS

TALKS: Final = str(MODELS / "talks.py")
FRAGILE: Final = str(MODELS / "fragile.py")
HELLO: Final = str(EXAMPLES / "hello")


@pytest.mark.covers("D38")
async def test_D38_results_files_failures_and_wrong_inputs(tmp_path: Path) -> None:
    """Given models and inputs of all kinds, when they run side by side, then stdout has results alone, files are where
    they were wanted, and what went wrong is told by its name and by the exit code."""
    (tmp_path / "who.txt").write_text("a file")
    done: dict[str, tuple[int, str, str]] = {}

    async def run(name: str, *arguments: str, stdin: bytes | None = None, **env: str) -> None:
        done[name] = await run_command(*arguments, temporary=tmp_path / name, cwd=tmp_path, stdin=stdin, env=env)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "file", "predict", HELLO, "-i", "name=@who.txt", "-o", "said/")
        nursery.start_soon(lambda: run("json", "run", HELLO, "--json", "@-", stdin=b'{"name": "stdin"}'))
        nursery.start_soon(run, "train", "train", str(EXAMPLES / "train"), "-i", f"text=@{__file__}", "-o", "w/")
        wrong = ("-i", "times=some", "-i", "stays=maybe", "-i", "wrds=a")
        nursery.start_soon(lambda: run("faults", "run", TALKS, *wrong, TALKS_GATE="/none"))  # while setup goes on
        nursery.start_soon(run, "crash", "run", FRAGILE, "-i", "how=leave")
        nursery.start_soon(run, "raise", "run", FRAGILE, "-i", "how=raise")
        nursery.start_soon(run, "import", "run", str(MODELS / "bad_import.py"))

    assert done["file"] == (0, "", "Written output to: said/output.txt\n")
    assert (tmp_path / "said" / "output.txt").read_text() == "hello a file"

    code, out, err = done["json"]
    whole = json.loads(out)
    assert (code, whole["status"], whole["output"], err) == (0, "succeeded", "hello stdin", "")

    code, out, err = done["train"]
    assert (code, out) == (0, "")
    assert "epoch 1 of 1\n" in err
    assert json.loads((tmp_path / "w" / "output.json").read_text())["weights"] == "w/output.weights.json"
    assert json.loads((tmp_path / "w" / "output.weights.json").read_text())

    assert done["faults"][:2] == (2, "")
    assert done["faults"][2].splitlines()[-3:] == [
        "cog-trio: input times: must be a whole number, not 'some'",
        "cog-trio: input stays: must be true or false, not 'maybe'",
        "cog-trio: input wrds: the model has no such input; did you mean words?",
    ]

    for name, why in [
        ("crash", "the prediction failed: Worker died: exit code 9"),
        ("raise", "the prediction failed: RuntimeError: boom"),
        ("import", "setup failed: ModuleNotFoundError: No module named 'no_such_module'"),
    ]:
        assert done[name][:2] == (1, "")
        assert f"cog-trio: {why}" in done[name][2]
    assert 'raise RuntimeError("boom")' in done["raise"][2], "the traceback is text of the model's"


@pytest.mark.covers("D38")
async def test_D38_words_come_as_they_are_said_and_an_interrupt_shows_the_clean_up(tmp_path: Path) -> None:
    """Given a model that waits after its first word, when it runs, then that word is there; when Ctrl-C comes, then
    the clean-up runs to its end and is seen, and exit 130."""
    async with open_command("run", TALKS, "-i", f"gate={tmp_path}/none", temporary=tmp_path / "t") as command:
        await command.until("one")
        command.interrupt()
        assert await command.end() == 130
    assert command.out == b"one"
    assert command.err.decode().splitlines() == [
        "warming up",
        "talking",
        "cleaning up",
        "cog-trio: the prediction was canceled",
    ]


@pytest.mark.covers("D38")
async def test_D38_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    """Given a model that refuses to stop, when Ctrl-C comes twice, then all is gone at once, and exit 130."""
    arguments = ("run", TALKS, "-i", f"gate={tmp_path}/none", "-i", "stays=true")
    async with open_command(*arguments, temporary=tmp_path / "t") as command:
        await command.until("one")
        command.interrupt()
        await command.until("cleaning up", err=True)
        command.interrupt()
        with trio.fail_after(10):
            assert await command.end() == 130


@pytest.mark.covers("D38")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
async def test_D38_an_interrupt_ends_a_setup(number: int, code: int, tmp_path: Path) -> None:
    """Given a setup that goes on, when Ctrl-C comes, or its terminal is closed, then nothing is left."""
    env = {"TALKS_GATE": str(tmp_path / "none")}
    async with open_command("run", TALKS, temporary=tmp_path / "t", env=env) as command:
        await command.until("warming up", err=True)
        command.process.send_signal(number)
        with trio.fail_after(10):
            assert await command.end() == code


async def test_a_reader_that_leaves_ends_the_run_without_a_word(tmp_path: Path) -> None:
    """Given ``| head``, when the reader has left, then the model is cancelled, and nothing is said about it."""
    async with open_command("run", TALKS, "-i", "times=1000000", temporary=tmp_path / "t") as command:
        await command.until("one two")
        command.stop_reading()
        assert await command.end() == 141
    assert command.err.decode().splitlines() == ["warming up", "talking", "cleaning up"]


async def test_on_a_terminal_a_line_says_what_is_waited_for(tmp_path: Path) -> None:
    """Given a terminal and a setup or a download that takes long, when a model runs, then a line says what it waits
    for, and what stays has no trace of it; with NO_COLOR no colours."""
    gate = tmp_path / "gate"
    env = {"TALKS_GATE": str(gate)}
    async with open_command("run", TALKS, temporary=tmp_path / "t", terminal=True, env=env) as command:
        await command.until("Setting up talks.py")
        gate.touch()
        assert await command.end() == 0
    assert command.out.endswith(b"one two\r\n")
    async with open_file_server() as files:
        url = files.add("boat.png", (EXAMPLES / "image" / "boat.png").read_bytes(), Reply(delay=1.5))
        arguments = ("run", str(EXAMPLES / "image"), "-i", f"image={url}", "-o", str(tmp_path / "out.png"))
        async with open_command(*arguments, temporary=tmp_path / "t", terminal=True, env={"NO_COLOR": "1"}) as command:
            assert await command.end() == 0
    said = command.out.decode()
    assert said.index("Running") < said.index("Written output to")
    assert "\x1b[3" not in said, "a colour"
    assert said.endswith(f"Written output to: {tmp_path}/out.png\r\n")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
