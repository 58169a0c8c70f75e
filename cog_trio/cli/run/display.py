"""Shows one prediction while it runs, and its end: the same for one that runs here and one that runs elsewhere.

In come items of the output as they are yielded, text of the model, and in the end the whole prediction as clients
see it. Items of an iterator are shown at once; every other output when it is whole. What was missed on the way is
made up for at the end, out of the whole output. The exit code is the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from cog_trio.cli.log_output import ESCAPES
from cog_trio.cli.options import NAME, USAGE
from cog_trio.cli.run.console import Console
from cog_trio.cli.run.output_writer import STDOUT, BadOutput, OutputForm, OutputNames, pretty

if TYPE_CHECKING:
    from cog_trio.cli.run.run_request import RunOptions

PIECE: Final = 2**18  # bytes of a file that are read at a time
DONE: Final = 0  # exit codes
FAILED: Final = 1
INTERRUPTED: Final = 130
NOBODY_READS: Final = 141  # what a shell shows for a program that SIGPIPE ended
FAULTS: Final = 20  # of an input that are shown
WHAT: Final = {"predict": "prediction", "train": "training"}


@dataclass(frozen=True)
class DisplayStyle:
    """How results are shown."""

    destination: str | None  # -o
    as_json: bool  # the whole prediction, as JSON
    terminal: bool  # stdout is one
    colour: bool = False  # of stderr
    mode: str = "predict"


class Display:
    """One prediction on a console."""

    def __init__(self, console: Console, style: DisplayStyle, form: OutputForm, staging: str | None = None) -> None:
        self._console = console
        self._style = style
        self._form = form
        self._files = OutputNames(style.destination, staging, beside=style.as_json)
        self._at_once = form.streams and not style.as_json and (style.destination in (None, STDOUT) or form.files)
        self._seen = 0  # items that were shown
        self._told = 0  # files
        self._open = False  # what was printed last has not ended its line

    def log(self, text: str) -> None:
        """Text of the model."""
        self._console.err(text)

    @property
    def wants_items(self) -> bool:
        """Items are shown as they come; if not, there is no need to decode them."""
        return self._at_once

    def has_shown(self, count: int) -> bool:
        """Whether an output of so many items was shown as they came, so that nothing of it is needed at the end."""
        return self._at_once and self._seen == count

    async def items(self, first: int, values: Sequence[Any]) -> None:
        """Items of the output, the first of them with this index. Those that are not the next are left for the end."""
        if self._at_once and first <= self._seen:
            await self._show_items(values[self._seen - first :])
        await self._console.room()

    async def finish(self, prediction: Mapping[str, Any]) -> int:
        """The end: what has not been shown, where files are, what went wrong; the exit code."""
        self._console.phase("")
        output = prediction.get("output")
        try:
            if self._style.as_json:
                await self._show_whole(prediction)
            elif self._at_once:
                await self._show_items(output[self._seen :] if isinstance(output, list) else ())
                if self._open:
                    self._console.out(b"\n")
            elif prediction["status"] == "succeeded":
                await self._show_output(output)
        except BadOutput as error:
            return self.broken(error)
        if prediction["status"] == "succeeded":
            return DONE
        if self._console.closed.is_set():
            return FAILED  # nobody reads, so nobody is told
        what = WHAT[self._style.mode]
        if prediction["status"] == "canceled":
            self._console.say(self._marked(f"the {what} was canceled"))
        else:
            why = plain(" ".join(str(prediction.get("error")).split()))
            self._console.say(self._marked(f"the {what} failed: {why}"))
        return FAILED

    def broken(self, error: BadOutput) -> int:
        """Say that the output can't be put where it should go; the exit code."""
        self._console.phase("")
        self._console.say(self._marked(str(error)))
        return FAILED

    def _marked(self, text: str) -> str:
        return f"\x1b[31m{NAME}: {text}\x1b[0m" if self._style.colour else f"{NAME}: {text}"

    # Parts.

    async def _show_items(self, values: Sequence[Any]) -> None:
        if self._form.glued and not self._form.files and all(isinstance(value, str) for value in values):
            self._seen += len(values)  # the usual stream of text: many small items at once
            if text := "".join(values):
                self._console.out(_encoded(text))
                self._open = self._style.terminal and not text.endswith("\n")
            return
        for value in values:
            await self._show_item(value)

    async def _show_item(self, value: Any) -> None:
        if await self._to_stdout(value, self._form.items):
            self._seen += 1
            return
        value = await self._replace(value, self._form.items, (str(self._seen),))
        self._seen += 1  # a file that can't be written is tried again at the end
        if self._form.files:
            return
        text = value if isinstance(value, str) else pretty(value, indent=False)
        self._console.out(_encoded(f"{text}\n"))

    async def _show_output(self, value: Any) -> None:
        if await self._to_stdout(value, self._form.schema):
            return
        if self._form.glued and isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = "".join(value)
        whole = isinstance(value, str)
        value = await self._replace(value, self._form.schema)
        if value is None or ((self._form.files or whole) and self._files.written):
            return  # the place of a file is said, and its name is not an output
        if isinstance(value, str):
            await self._show_text(value, ".txt")
        else:
            indent = self._style.terminal or self._style.destination is not None
            await self._show_text(pretty(value, indent=indent), ".json")

    async def _show_whole(self, prediction: Mapping[str, Any]) -> None:
        whole = dict(prediction)
        if "output" in whole:
            whole["output"] = await self._replace(whole["output"], self._form.schema)
        await self._show_text(pretty(whole, indent=True), ".json")

    async def _show_text(self, text: str, suffix: str) -> None:
        if self._style.destination in (None, STDOUT):
            self._console.out(_encoded(text if self._style.destination else f"{text}\n"))
        else:
            data = _encoded(text if suffix == ".txt" else f"{text}\n")
            await trio.to_thread.run_sync(self._files.write, data, suffix)
            self._tell()

    async def _to_stdout(self, value: Any, schema: Mapping[str, Any]) -> bool:
        """Whether ``-o -`` has taken a file's content to stdout."""
        if self._style.destination != STDOUT or self._style.as_json:
            return False
        content = await trio.to_thread.run_sync(self._files.content, value, schema)
        if isinstance(content, Path):
            await self._copy_to_stdout(content)
        elif content is not None:
            self._console.out(content)
        return content is not None

    async def _copy_to_stdout(self, path: Path) -> None:
        """Write a file of any size to stdout, no faster than its reader takes it.

        Raises:
          BadOutput: it can't be read.
        """
        try:
            async with await trio.open_file(path, "rb") as file:
                while (piece := await file.read(PIECE)) and not self._console.closed.is_set():
                    self._console.out(piece)
                    await self._console.room()
        except OSError as error:
            raise BadOutput(f"an output file can't be read: {error.strerror or error}") from error

    async def _replace(self, value: Any, schema: Mapping[str, Any], place: Sequence[str] = ()) -> Any:
        if self._files.concern(value):
            value = await trio.to_thread.run_sync(self._files.replace, value, schema, place)
            self._tell()
        return value

    def _tell(self) -> None:
        for path in self._files.written[self._told :]:
            self._console.say(f"Written output to: {path}")
        self._told = len(self._files.written)
        for warning in self._files.warnings:
            self._console.say(f"{NAME}: warning: {warning}")
        self._files.warnings.clear()


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def plain(text: str) -> str:
    """What somebody else wrote, for a line of ours: without what could steer a terminal."""
    return text.translate(ESCAPES)


def display_style(run_options: RunOptions) -> DisplayStyle:
    """How results are shown, with what only the program itself knows: where it prints to."""
    terminal = sys.stdout.isatty()
    return DisplayStyle(
        run_options.destination,
        run_options.as_json,
        terminal,
        run_options.colour and sys.stderr.isatty(),
        run_options.mode,
    )


def refuse(console: Console, faults: Sequence[str]) -> int:
    """Say what is wrong with the inputs, a line each; the exit code."""
    console.phase("")
    for fault in faults[:FAULTS]:
        console.say(f"{NAME}: input {plain(fault)}")
    if len(faults) > FAULTS:
        console.say(f"{NAME}: and {len(faults) - FAULTS} more")
    return USAGE


def fault_line(place: Sequence[str], text: str) -> str:
    """A fault of a request's body, as a fault of an input."""
    name = ".".join(map(str, [part for part in place if part not in ("body", "input", "__root__")]))
    if text == "Field required":
        return f"{name}: is required: give it by -i {name}=…"
    return f"{name}: {text}" if name else text
