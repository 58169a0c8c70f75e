"""What ``open_service`` makes of the model that it is given; the worker is not started here, only asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cog_trio import BadModel, open_service
from cog_trio.config.settings import Settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model in it; no worker is spawned, and how it would have been is the cause of the failed setup."""
    (tmp_path / "predict.py").touch()
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, dict[str, str]]]:
    calls: list[tuple[str | None, dict[str, str]]] = []

    def spawn(cwd: str | None, env: dict[str, str]) -> None:
        calls.append((cwd, dict(env)))
        raise OSError("no worker here")

    monkeypatch.setattr("cog_trio.orchestrator.worker_handle.spawn", spawn)
    return calls


async def opened(model: Any, spawned: list[tuple[str | None, dict[str, str]]], **options: Any) -> dict[str, Any]:
    """Folder, environment and references of the worker that a service asks for, and its slots."""
    async with open_service(model, **options) as service:
        health = await service.wait_started()
        assert health.status == "SETUP_FAILED"
        (cwd, env), *more = spawned
        assert not more
        return {
            "cwd": cwd,
            "env": env,
            "slots": service.settings.max_concurrency,
            "modes": set(service._worker_pool.modes),
        }


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_file_is_run_from_its_own_folder(folder: Path, spawned: list[Any], kind: Any) -> None:
    seen = await opened(kind(folder / "predict.py"), spawned)
    assert (seen["cwd"], seen["slots"]) == (str(folder), None)


async def test_a_folder_says_all_in_its_cog_yaml(
    folder: Path, spawned: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "cog.yaml").write_text(
        "predict: predict.py:Runner\ntrain: train.py:train\nconcurrency: {max: 3}\n"
        "environment: [ONE=file, TWO=file, THREE=file, PATH=file]\n"
    )
    monkeypatch.setenv("TWO", "ours")
    seen = await opened(folder, spawned, environment={"THREE": "given"})
    assert (seen["cwd"], seen["slots"], len(seen["modes"])) == (str(folder), 3, 2)
    assert (seen["env"]["ONE"], seen["env"].get("TWO"), seen["env"]["THREE"]) == ("file", None, "given")
    assert "environment sets PATH" in caplog.text


async def test_the_current_folder_and_settings_before_cog_yaml(folder: Path, spawned: list[Any]) -> None:
    (folder / "cog.yaml").write_text("run: predict.py:Runner\nconcurrency: {max: 3}\n")
    seen = await opened(".", spawned, settings=Settings(max_concurrency=2))
    assert (seen["cwd"], seen["slots"]) == (str(folder), 2)


async def test_a_cwd_means_references_as_they_are(folder: Path, spawned: list[Any]) -> None:
    seen = await opened("anything.py:Name", spawned, cwd=folder)
    assert (seen["cwd"], len(seen["modes"])) == (str(folder), 1)


async def test_a_training_beside_a_model_and_alone(folder: Path, spawned: list[Any]) -> None:
    assert len((await opened("predict.py", spawned, train="train.py:train"))["modes"]) == 2
    spawned.clear()
    assert len((await opened(None, spawned, train="train.py:train"))["modes"]) == 1


@pytest.mark.parametrize(
    ("model", "train", "text"),
    [
        ("missing.py", None, "there is no file or folder missing.py"),
        (".", None, "no cog.yaml in the current folder"),
        ("predict.py", "deep/train.py", "name a cwd for both"),
    ],
)
async def test_what_is_not_there_is_told_at_once(folder: Path, model: str, train: str | None, text: str) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "train.py").touch()
    with pytest.raises(BadModel, match=text):
        async with open_service(model, train=train):
            raise AssertionError("never reached")
