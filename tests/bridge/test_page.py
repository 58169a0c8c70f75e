"""docs/reference/wire.md lists every message, with its members, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest

from cog_trio.bridge.protocol import (
    MAX_FRAME,
    MAX_INLINE,
    PROTOCOL_VERSION,
    ControlRequest,
    ControlResponse,
    SlotRequest,
    SlotResponse,
)

PAGE: Final = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()


def _listed(heading: str) -> dict[str, list[str]]:
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| .+ \|$", section, re.MULTILINE)
    return {tag: re.findall(r"`(\w+)`", members) for tag, members in rows}


@pytest.mark.parametrize(
    ("heading", "union"),
    [
        ("To the worker, control", ControlRequest),
        ("From the worker, control", ControlResponse),
        ("To the worker, slot", SlotRequest),
        ("From the worker, slot", SlotResponse),
    ],
)
def test_the_page_lists_every_message_of_the_code(heading: str, union: Any) -> None:
    assert _listed(heading) == {
        message.__struct_config__.tag: [field.encode_name for field in msgspec.structs.fields(message)]
        for message in get_args(union) or (union,)  # of one alone there is no union
    }


def test_the_page_tells_the_limits_of_the_code() -> None:
    assert f"Version {PROTOCOL_VERSION}." in PAGE
    assert f"{MAX_FRAME // 2**20} MiB" in PAGE
    assert f"over {MAX_INLINE // 2**20} MiB" in PAGE
