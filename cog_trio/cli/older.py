"""The older spelling in cog.yaml: ``predict`` instead of ``run``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from cog_trio.cli.findings import Edit, Finding
from cog_trio.marks import read


def older_key(path: Path) -> Iterator[Finding]:
    """A finding if the document says ``predict``, with the edit that says ``run``.

    Raises:
      BadFile: it is no YAML.
    """
    mark = read(path).fields().get("predict")
    if mark is None or mark.empty:
        return
    data = path.read_bytes()
    edits: tuple[Edit, ...] = ()
    document = yaml.compose(data, yaml.SafeLoader)
    for key, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if value.start_mark.index == mark.node.start_mark.index:  # not one that came by a merge
            text = data.decode("utf-8", "replace")  # of UTF-16, which YAML may be too, the word is not found
            start = len(text[: key.start_mark.index].encode())
            if data[start : start + 7] == b"predict":
                edits = (Edit(path, start, start + 7, "run"),)
    yield Finding("deprecated", f"{path.name}:{mark.line}", "predict is the older spelling of run", edits)
