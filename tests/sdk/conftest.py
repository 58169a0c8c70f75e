from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.source import Models, opened_models


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Models]:
    yield from opened_models(tmp_path, monkeypatch)
