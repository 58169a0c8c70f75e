"""Frames that a cancel must not be raised in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cog_trio.worker.cancel.stack import is_unbreakable


def test_code_of_the_user_can_be_cut() -> None:
    assert not is_unbreakable(sys._getframe())


def test_an_import_can_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can code that an import calls."""
    (tmp_path / "looks_up.py").write_text(
        "import sys\nfrom cog_trio.worker.cancel.stack import is_unbreakable\nseen = is_unbreakable(sys._getframe())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import looks_up  # type: ignore[import-not-found]

    assert looks_up.seen


@pytest.mark.process
def test_the_start_of_a_process_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its pipe and what closes that is a place where an exception would leave both ends open."""
    pipe = os.pipe
    seen: list[bool] = []

    def noted() -> tuple[int, int]:
        seen.append(is_unbreakable(sys._getframe()))
        return pipe()

    monkeypatch.setattr(os, "pipe", noted)
    subprocess.run(["true"], check=True, close_fds=True, start_new_session=True)
    assert seen
    assert all(seen)
