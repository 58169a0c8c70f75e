"""Text that is more than text: loguru hands a subclass of ``str`` to the stream; models may do it anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from cog_trio.bridge.protocol import Log, LogSource
from tests.worker.rig import Parent, open_worker

SOURCE: Final = """
    import enum, sys, threading
    from typing import Any
    import cog
    from loguru import logger

    class Text(str):
        def __str__(self): return "wrong"
        def __format__(self, spec): return "wrong"
    class Colour(str, enum.Enum):
        RED = "red"
    class Told(Exception):
        def __str__(self): return Text("told")

    logger.remove()
    logger.add(sys.stdout, format="{message}")
    logger.info("import")
    def many(name):
        for number in range(100): logger.info(f"{name} {number}")
    CHOICES = [Text(name) for name in ("loguru", "threads", "streams", "metrics", "output", "error")]
    MARK
    class Runner(cog.BaseRunner):
        def setup(self) -> None:
            logger.info("setup")
        KIND run(self, what: str = cog.Input(default=Text("loguru"), choices=CHOICES, description=Text("what"))) -> Any:
            scope = cog.current_scope()
            if what == "loguru":
                logger.info("run")
            elif what == "threads":
                threads = [threading.Thread(target=many, args=(name,)) for name in "ab"]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
            elif what == "streams":
                sys.stdout.writelines([Text("a\\n"), Text("b\\n")])
                return [sys.stdout.write(Text("out\\n")), sys.stderr.write(Text("err\\n"))]
            elif what == "metrics":
                scope.record_metric(Text("name"), Text("value"))
                scope.record_metric(Text("tree"), {Text("key"): [Text("item"), Colour.RED]}, mode=Text("replace"))
                scope.metrics[Text("gone")] = 1
                del scope.metrics[Text("gone")]
            elif what == "output":
                return {Text("key"): [Text("item"), Colour.RED]}
            else:
                raise Told
"""
KINDS: Final = {"sync": ("", "def"), "async": ("", "async def"), "trio": ("@cog.trio", "async def")}


def source(kind: str) -> str:
    mark, word = KINDS[kind]
    return SOURCE.replace("MARK", mark).replace("KIND", word)


async def logged(parent: Parent, text: str) -> None:
    while text not in parent.service_log():
        await parent.hear(Log)


@pytest.mark.parametrize("kind", KINDS)
async def test_loguru_writes_in_import_setup_and_runs(tmp_path: Path, kind: str) -> None:
    async with open_worker(tmp_path, source(kind)) as parent:
        await logged(parent, "import\nsetup\n")
        assert (await parent.run()).logs() == "run\n"
        lines = (await parent.run({"what": "threads"})).logs().splitlines()
        for name in "ab":
            assert [line for line in lines if line[0] == name] == [f"{name} {number}" for number in range(100)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_subclass_of_str_is_the_text_that_it_holds(tmp_path: Path, kind: str) -> None:
    async with open_worker(tmp_path, source(kind)) as parent:
        streams = await parent.run({"what": "streams"})
        assert (streams.outputs, streams.logs(LogSource.STDOUT)) == ([4, 4], "a\nb\nout\n")
        assert streams.logs(LogSource.STDERR) == "err\n"
        metrics: list[tuple[str, Any, str]] = (await parent.run({"what": "metrics"})).metrics
        assert metrics == [
            ("name", "value", "replace"),
            ("tree", {"key": ["item", "red"]}, "replace"),
            ("gone", 1, "replace"),
            ("gone", None, "replace"),
        ]
        output = await parent.run({"what": "output"})
        assert output.done, output
        assert output.outputs == [{"key": ["item", "red"]}]
        assert (await parent.run({"what": "error"})).error == "Told: told"
