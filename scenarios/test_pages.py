"""Every block of code in the documentation runs, page by page, as a reader would type it (pages.py says how)."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
import trio

from scenarios.pages import FILES, LOCAL, PARSERS, BadPage, Block, blocks, like, parses, segments, write
from scenarios.places import SPARED

ROOT: Final = Path(__file__).parent.parent
BLOCK: Final = 60.0  # seconds that one block may take
END: Final = 20.0  # seconds until a server without work must be gone
PAGES: Final = sorted(
    page for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if any(blocks(page.read_text()))
)
NOT_RUN: Final = {  # blocks a page
    "README.md": 2,
    "docs/how-to/develop.md": 1,
    "docs/how-to/container.md": 3,
    "docs/how-to/gpu.md": 1,
    "docs/how-to/openai.md": 1,
    "docs/how-to/playground.md": 1,
    "docs/how-to/javascript.md": 2,
    "docs/how-to/production.md": 1,
    "docs/how-to/run.md": 1,
    "docs/how-to/security.md": 1,
    "docs/reference/model.md": 1,
    "docs/tutorial/first-model.md": 1,
}


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Reader:
    """Somebody who types what a page says, in a folder of its own."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder = folder
        self._nursery = nursery
        self._here = str(folder)
        self._address = ""
        self._server: trio.Process | None = None
        self._log: list[str] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COG_TRIO_")},
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "COG_TRIO_PORT": "0",
            "LOG_FORMAT": "json",
            "PYTEST_ADDOPTS": SPARED,
            "TMPDIR": str(folder / ".tmp"),
        }
        (folder / ".tmp").mkdir()

    async def read(self, block: Block, before: str) -> str:
        """Do what one block says; what it printed."""
        if "no-run" in block.marks or block.language == "mermaid":
            return ""
        if "output" in block.marks:
            assert like(block.text, before), f"line {block.line}: the page shows\n{block.text}\nseen was\n{before}"
            return before
        if block.title is not None and block.language in FILES:
            write(self.folder, block)
            return ""
        if block.language in PARSERS:
            parses(block)
            return ""
        code = int(block.marks.get("fails", "0"))
        if block.language == "python":
            return await self._shell(block, shlex.join([sys.executable, "-c", self._local(block.text)]), code)
        if block.language != "sh":
            raise BadPage(f"line {block.line}: nothing is known of blocks of {block.language!r}: mark it no-run")
        printed = ""
        for segment in segments(block.text):
            if segment.serves:
                await self._serve(block, segment.text)
            else:
                printed += await self._shell(block, self._local(segment.text), code)
        return printed

    def _local(self, text: str) -> str:
        return LOCAL.sub(self._address, text) if self._address else text

    async def _shell(self, block: Block, text: str, code: int) -> str:
        kept = self.folder / ".tmp" / "state"
        script = f"trap 'env -0 > {kept}; pwd > {kept}.pwd' EXIT\nset -euo pipefail\n{text}\n"
        with trio.fail_after(BLOCK):
            done = await trio.run_process(
                ["bash", "-c", script],
                cwd=self._here,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        printed = done.stdout.decode()
        seen = f"{printed}\n{done.stderr.decode()}\nserver: {''.join(self._log)[-3000:]}"
        assert done.returncode == code, f"line {block.line}: exit code {done.returncode}\n{text}\n{seen}"
        pairs = (pair.partition("=") for pair in kept.read_text().split("\0") if pair)
        self._environment = {name: value for name, _, value in pairs if name not in ("_", "SHLVL")}
        self._here = Path(f"{kept}.pwd").read_text().rstrip("\n")
        return printed

    async def _serve(self, block: Block, command: str) -> None:
        await self.stop()
        self._log = []
        bound: trio.MemorySendChannel[str]
        bound, found = trio.open_memory_channel[str](1)
        self._server = await self._nursery.start(
            partial(
                trio.run_process,
                ["bash", "-c", command.replace("cog-trio serve", "exec cog-trio serve", 1)],
                cwd=self._here,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
        )
        self._nursery.start_soon(self._watch, self._server, bound)
        with trio.fail_after(BLOCK):
            try:
                url = await found.receive()
            except trio.EndOfChannel:
                raise AssertionError(f"line {block.line}: {command} has ended: {''.join(self._log)}") from None
            self._address = url.split("//")[1]
            async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
                while (await client.get("/health-check")).json()["status"] == "STARTING":
                    await trio.sleep(0.02)

    async def _watch(self, server: trio.Process, bound: trio.MemorySendChannel[str]) -> None:
        assert server.stderr is not None
        rest = b""
        with bound:
            async for data in server.stderr:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._log.append(line.decode() + "\n")
                    with suppress(ValueError, KeyError, TypeError, trio.WouldBlock):
                        bound.send_nowait(json.loads(line)["urls"][0])

    async def stop(self) -> None:
        """Ctrl-C for the server, as the pages say."""
        if self._server is None:
            return
        self._server.send_signal(signal.SIGINT)
        with trio.fail_after(END):
            code = await self._server.wait()
        assert code == 0, f"the server left with {code}: {''.join(self._log)[-3000:]}"
        self._server = None


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=_name)
async def test_what_a_page_says_works(page: Path, tmp_path: Path) -> None:
    for name in ("docs", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    async with trio.open_nursery() as nursery:
        reader = Reader(tmp_path, nursery)
        printed = ""
        try:
            for block in blocks(page.read_text()):
                printed = await reader.read(block, printed)
        finally:
            with trio.move_on_after(END + 5, shield=True):
                await reader.stop()
    kept = ("state", "pytest-of-")  # of the reader; the folders of the last runs, which pytest keeps
    left = [entry for entry in (tmp_path / ".tmp").iterdir() if not entry.name.startswith(kept)]
    assert left == []


def test_what_is_not_run_is_listed_here_and_says_why() -> None:
    """A block marked no-run needs something that no test has: another host, a package index, docker, a cluster."""
    marked = {}
    for page in PAGES:
        unrun = [block for block in blocks(page.read_text()) if "no-run" in block.marks]
        for block in unrun:
            assert block.marks["no-run"], f"{_name(page)}, line {block.line}: no reason is given"
        if unrun:
            marked[_name(page)] = len(unrun)
    assert marked == NOT_RUN
