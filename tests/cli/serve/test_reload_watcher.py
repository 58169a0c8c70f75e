"""Which files count for ``--reload``, and what is said of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from watchfiles import Change

from cog_trio.cli.launch_plan import LaunchPlan
from cog_trio.cli.serve.reload_watcher import _counts, _why, obstacle, watch
from cog_trio.config.settings import BadSetting, Settings, read_settings, worker_variables


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("/model/predict.py", True),
        ("/model/deep/inside/helper.py", True),
        ("/model/cog.yaml", True),
        ("/more/library.py", True),
        ("/model/deep/cog.yaml", False),  # of another model
        ("/model/weights.json", False),
        ("/model/output.png", False),
        ("/model/.predict.py.swp", False),
        ("/model/.predict.py", False),
        ("/model/.git/hooks/x.py", False),
        ("/model/.venv/lib/python3.12/site-packages/numpy/__init__.py", False),
        ("/model/venv/lib/python3.12/os.py", False),
        ("/model/__pycache__/predict.cpython-312.pyc", False),
        ("/model/node_modules/gyp/gyp.py", False),
        ("/model", False),
        ("/elsewhere/predict.py", False),
        ("/modelled/predict.py", False),
    ],
)
def test_what_counts(path: str, counts: bool) -> None:
    assert _counts(["/model", "/more"], "cog.yaml", Change.modified, path) is counts


def test_the_root_folder_and_the_end_of_one_count_too() -> None:
    assert _counts(["/"], "cog.yaml", Change.added, "/predict.py") is True
    assert _counts(["/model"], "cog.yaml", Change.deleted, "/model") is True


class Service:
    """Notes what is asked for."""

    def __init__(self) -> None:
        self.reloads: list[str] = []

    def reload(self, why: str, **_: object) -> None:
        self.reloads.append(why)

    async def saved(self, file: Path, why: str) -> None:
        """Save a file until that is heard: there is no sign of when watching begins."""
        with trio.fail_after(20):
            while why not in self.reloads:
                await trio.Path(file).write_text(f"{trio.current_time()}")
                await trio.sleep(0.5)
            self.reloads.clear()


async def test_a_folder_that_is_made_again_or_replaced_is_watched_on(tmp_path: Path) -> None:
    """And the end does not wait for the next change: the thread looks up soon."""
    service: Any = Service()
    folder, other = tmp_path / "model", tmp_path / "other"
    plan = LaunchPlan("cog-trio", Settings(reload=True), str(folder), "predict.py", None, {})
    folder.mkdir()
    other.mkdir()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, service, plan)
        await service.saved(folder / "predict.py", "predict.py has changed")
        shutil.rmtree(folder)
        folder.mkdir()
        await service.saved(other / "not yet.py", "the folder has changed")
        await service.saved(folder / "predict.py", "predict.py has changed")
        folder.rename(tmp_path / "old")
        other.rename(folder)
        await service.saved(tmp_path / "x", "the folder has changed")
        await service.saved(folder / "predict.py", "predict.py has changed")
        nursery.cancel_scope.cancel()
        began = trio.current_time()
    assert trio.current_time() - began < 3.0, "which was 5 s"


async def test_what_the_system_can_not_watch_ends_the_watching_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "OS file watch limit reached")

    monkeypatch.setattr("watchfiles.main.RustNotify", full)
    with trio.fail_after(20):
        service: Any = Service()
        await watch(service, LaunchPlan("cog-trio", Settings(reload=True), str(tmp_path), "predict.py", None, {}))
    assert "--reload has ended" in caplog.text


def test_what_is_said() -> None:
    assert _why("/model", ["/model"]) == "the folder has changed"
    assert _why("/model", ["/model/a.py"]) == "a.py has changed"
    assert _why("/model", ["/model/a.py", "/model/b/c.py", "/more/d.py"]) == "a.py and 2 more have changed"


def test_reload_is_off_and_a_folder_turns_it_on() -> None:
    assert read_settings({}, {})[0].reload is False
    assert read_settings({"reload": "true"}, {})[0].reload is True
    chosen, _ = read_settings({}, {"COG_TRIO_RELOAD_DIR": "a,b"})
    assert (chosen.reload, chosen.reload_dir) == (True, ("a", "b"))
    with pytest.raises(BadSetting, match="COG_TRIO_RELOAD"):
        read_settings({}, {"COG_TRIO_RELOAD": "perhaps"})


def test_two_saves_within_a_second_are_told_apart() -> None:
    assert worker_variables(Settings(reload=True))["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in worker_variables(Settings())


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    assert obstacle(Settings(reload=True)) is None
    assert obstacle(Settings(reload=True, reload_dir=(str(tmp_path), "/nowhere"))) == (
        "--reload-dir /nowhere: there is no such folder"
    )
    monkeypatch.setattr("cog_trio.cli.serve.reload_watcher.find_spec", lambda name: None)
    assert obstacle(Settings(reload=True)) == ("--reload needs the package watchfiles: pip install 'cog-trio[reload]'")
