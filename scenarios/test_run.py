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


async def test_inputs_are_checked_before_setup_has_ended(tmp_path: Path) -> None:
    """Given a setup that goes on for ever, when inputs are missing, unknown, out of range or of the wrong type, then
    all of that is told at once, with exit 2; without inputs the model's inputs are listed."""
    env = {"TALKS_GATE": str(tmp_path / "none")}
    wrong = ("-i", "times=0", "-i", "wrds=a", "-i", "stays=maybe")
    code, out, err = await run_command("run", TALKS, *wrong, temporary=tmp_path / "t", env=env)
    assert (code, out) == (2, "")
    told = [line for line in err.splitlines() if line.startswith("cog-trio: ")]
    assert [line.split(": ")[1] for line in told] == ["input wrds", "input stays", "input times"]
    assert told[2].endswith("0 is less than the minimum of 1")

    model = tmp_path / "model.py"
    model.write_text(
        "import time\nclass Runner:\n    def setup(self):\n        time.sleep(3600)\n"
        "    def run(self, prompt: str, size: int = 1) -> str:\n        return prompt\n"
    )
    code, out, err = await run_command("run", str(model), temporary=tmp_path / "u")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "cog-trio: input prompt: is required: give it by -i prompt=…",
        "INPUT   TYPE     DEFAULT   DESCRIPTION",
        "prompt  string   required",
        "size    integer  1",
    ]
    code, out, err = await run_command("schema", "--inputs", str(model), temporary=tmp_path / "v")
    assert (code, out.splitlines(), err) == (0, ["INPUT   TYPE     DEFAULT   DESCRIPTION", *out.splitlines()[1:]], "")
    assert len(out.splitlines()) == 3


async def test_train_writes_to_weights_and_says_once_what_is_missing(tmp_path: Path) -> None:
    """Given a train function, when it is run without -o, then its result is ``weights``; given none, one line."""
    model = tmp_path / "model.py"
    model.write_text("def train(n: int = 1) -> int:\n    return n + 1\n")
    done = await run_command("train", str(model), temporary=tmp_path / "t", cwd=tmp_path)
    assert done == (0, "", "Written output to: weights\n")
    assert (tmp_path / "weights").read_text() == "2\n"
    (tmp_path / "other.py").write_text("class Model:\n    def run(self) -> int:\n        return 1\n")
    for command, words in (("train", "neither a function train"), ("run", "name it by other.py:Model")):
        code, out, err = await run_command(command, "other.py", temporary=tmp_path / command, cwd=tmp_path)
        assert (code, out) == (1, "")
        assert words in err
        assert err.count("\n") == 1


async def test_an_output_of_another_kind_than_its_name_is_told(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "from cog import Path\ndef run() -> Path:\n    p = Path('made.jpg')\n    p.write_bytes(b'x')\n    return p\n"
    )
    arguments = ("run", "model.py:run", "-o", "out.png")
    code, out, err = await run_command(*arguments, temporary=tmp_path / "t", cwd=tmp_path)
    assert (code, out) == (0, "")
    assert "cog-trio: warning: out.png is named .png, but holds image/jpeg\n" in err


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
