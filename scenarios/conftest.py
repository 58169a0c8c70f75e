"""Fixtures of the scenarios: ``serve`` starts a real server; see rig.py."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from scenarios.rig import Server, open_server
from tests.strict import pytest_runtest_makereport

__all__ = ["Serve", "pytest_runtest_makereport", "serve"]


class Serve(Protocol):
    """``async with serve("model.py", "--flag") as server``."""

    def __call__(self, model: str | Path, *flags: str, **options: Any) -> AbstractAsyncContextManager[Server]: ...


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    def start(model: str | Path, *flags: str, **options: Any) -> AbstractAsyncContextManager[Server]:
        return open_server(model, tmp_path / "tmp", *flags, **options)

    return start
