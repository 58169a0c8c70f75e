"""What of a prediction is shown, where, and as which exit code; what was missed on the way is made up for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cog_trio.cli.run.console import OUT, Console
from cog_trio.cli.run.display import Display, DisplayStyle
from cog_trio.cli.run.output_writer import BadOutput, OutputForm

TEXTS = {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"}
GLUED = {**TEXTS, "x-cog-array-display": "concatenate"}
OBJECTS = {"type": "array", "items": {"type": "object"}, "x-cog-array-type": "iterator"}
FILES = {"type": "array", "items": {"type": "string", "format": "uri"}, "x-cog-array-type": "iterator"}
ANY: dict[str, Any] = {}


class Paper(Console):
    """A console that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(None)
        self.stdout = ""
        self.stderr = ""

    def _put(self, descriptor: int, data: bytes) -> None:
        if descriptor == OUT:
            self.stdout += data.decode()
        else:
            self.stderr += data.decode()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def display(output: dict[str, Any], **style: Any) -> tuple[Display, Paper]:
    paper = Paper()
    form = OutputForm({"components": {"schemas": {"Output": output}}}, "predict")
    return Display(
        paper, DisplayStyle(**{"destination": None, "as_json": False, "terminal": False, **style}), form
    ), paper


def done(output: Any, **more: Any) -> dict[str, Any]:
    return {"status": "succeeded", "output": output, **more}


@pytest.mark.parametrize(
    ("schema", "output", "style", "shown"),
    [
        ({"type": "string"}, "a text", {}, "a text\n"),
        ({"type": "integer"}, 10**30, {}, f"{10**30}\n"),
        ({"type": "boolean"}, True, {}, "true\n"),
        (ANY, None, {}, ""),
        (ANY, {"a": [1]}, {}, '{"a": [1]}\n'),
        (ANY, {"a": 1}, {"terminal": True}, '{\n  "a": 1\n}\n'),
        (ANY, "é", {"destination": "-"}, "é"),
        (GLUED, ["a", "b"], {}, "ab"),
        (GLUED, ["a", "b"], {"terminal": True}, "ab\n"),
        (GLUED, ["a", "b\n"], {"terminal": True}, "ab\n"),
        (GLUED, [], {"terminal": True}, ""),
        (TEXTS, ["a", "b"], {}, "a\nb\n"),
        (OBJECTS, [{"a": 1}, {"b": 2}], {"terminal": True}, '{"a": 1}\n{"b": 2}\n'),
        ({"type": "string", "format": "uri"}, "https://host/a.png", {}, "https://host/a.png\n"),
        ({"type": "string", "format": "uri"}, "data:,pixels", {"destination": "-"}, "pixels"),
    ],
)
async def test_an_output_is_shown_by_its_kind(schema: dict[str, Any], output: Any, style: Any, shown: str) -> None:
    """The same, whether its items came one by one or only with the end."""
    one, paper = display(schema, **style)
    if isinstance(output, list) and one.wants_items:
        for index, item in enumerate(output):
            await one.items(index, [item])
    assert await one.finish(done(output)) == 0
    assert (paper.stdout, paper.stderr) == (shown, "")
    late, paper = display(schema, **style)
    assert await late.finish(done(output)) == 0
    assert paper.stdout == shown


async def test_items_that_were_missed_are_shown_at_the_end_in_order() -> None:
    one, paper = display(GLUED)
    await one.items(0, ["a"])
    await one.items(2, ["c"])  # its predecessor was lost
    await one.items(0, ["a"])  # seen before
    assert paper.stdout == "a"
    await one.finish(done(["a", "b", "c"]))
    assert paper.stdout == "abc"


async def test_a_failed_stream_keeps_what_has_come_and_says_why() -> None:
    one, paper = display(GLUED)
    await one.items(0, ["a"])
    code = await one.finish({"status": "failed", "output": ["a", "b"], "error": "ValueError: \x1b[31mred\nline"})
    assert (code, paper.stdout) == (1, "ab")
    assert paper.stderr == "cog-trio: the prediction failed: ValueError: \\x1b[31mred line\n"


async def test_canceled_by_somebody_else_is_no_success() -> None:
    one, paper = display(ANY, mode="train")
    assert await one.finish({"status": "canceled"}) == 1
    assert paper.stderr == "cog-trio: the training was canceled\n"


async def test_files_of_a_stream_are_written_as_they_come(tmp_path: Path) -> None:
    one, paper = display(FILES)
    await one.items(0, ["data:image/png;base64,AAAA"])
    assert (tmp_path / "output.0.png").read_bytes() == b"\0\0\0"
    assert await one.finish(done(["data:image/png;base64,AAAA", "data:image/gif;base64,AAAA"])) == 0
    assert paper.stdout == ""
    assert paper.stderr == "Written output to: output.0.png\nWritten output to: output.1.gif\n"


async def test_a_file_of_any_output_stands_at_its_place_alone(tmp_path: Path) -> None:
    """Its own name is not written over it."""
    shown, paper = display({}, destination="cat")
    assert await shown.finish(done("data:,meow")) == 0
    assert (tmp_path / "cat.txt").read_text() == "meow"
    assert not (tmp_path / "cat").exists()
    assert paper.stdout == ""


async def test_an_item_that_can_not_be_written_is_not_passed_over(tmp_path: Path) -> None:
    """A style at the state that fails shows no more; the end tries again, and says so."""
    shown, paper = display(FILES)
    (tmp_path / "output.1.txt").mkdir()
    with pytest.raises(BadOutput):
        await shown.items(0, ["data:,0", "data:,1"])
    assert not shown.has_shown(2)
    assert await shown.finish(done(["data:,0", "data:,1"])) == 1
    assert paper.stderr.count("output.1.txt can't be written") == 1
    assert paper.stderr.count("Written output to: output.0.txt") == 1


async def test_a_broken_file_is_a_failure_that_is_told() -> None:
    one, paper = display({"type": "string", "format": "uri"})
    assert await one.finish(done("data:image/png;base64,?")) == 1
    assert "broken data URL" in paper.stderr


@pytest.mark.parametrize("status", ["succeeded", "failed"])
async def test_as_json_everything_is_there_whatever_came(status: str, tmp_path: Path) -> None:
    one, paper = display(FILES, as_json=True, destination="result.json")
    assert not one.wants_items
    code = await one.finish({"status": status, "output": ["data:image/png;base64,AAAA"], "logs": "l"})
    assert code == (status != "succeeded")
    told = json.loads((tmp_path / "result.json").read_text())
    assert told == {"status": status, "output": ["result.0.png"], "logs": "l"}
    assert paper.stdout == ""
