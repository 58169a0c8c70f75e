"""The pytest plugin: fixtures for tests of models, and of programs that use cog-trio.

pytest loads it wherever cog-trio is installed, so importing it imports nothing but pytest, and a test that uses none
of its fixtures pays nothing. What a fixture is made of is imported when the fixture is called.

``serve_model``, ``open_service`` and ``fake_worker`` are plain functions that give ``async with`` blocks: a server
lives exactly as long as its block, also when a test has several. Therefore they need no help of an async plugin, and
work with pytest-trio in ``trio_mode`` and without it. When a test fails, the report shows the logs of its servers.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cog_trio.testing.models import find_model

if TYPE_CHECKING:
    from collections.abc import Generator

    from cog_trio.service import PredictionService
    from cog_trio.testing.fixtures import OpenService, ServeModel
    from cog_trio.testing.server import Entry, Server

LOGS = pytest.StashKey["list[tuple[str, list[Entry]]]"]()  # of a test's servers, with what each of them serves
FOLDERS = "cog_trio_models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(FOLDERS, "folders with models for serve_model and open_service", type="paths", default=[])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (logs := item.stash.get(LOGS, None)):
        from cog_trio.testing.server import shown

        report.sections += [(f"Captured log of the server of {model}", shown(log)) for model, log in logs if log]
        logs.clear()  # a failure of the teardown has a report of its own
    return report


@pytest.fixture
def serve_model(request: pytest.FixtureRequest, tmp_path: Path) -> ServeModel:
    """Serve a model by a real server on a free port: ``async with serve_model("predict.py") as server:``.

    ``serve_model(model, *flags, status, env, command, cwd, temporary, timeout)``; flags are those of ``cog-trio
    serve``. The block begins when the model is READY. ``server.client`` is an ``httpx.AsyncClient`` for the server,
    and ``server.predict``, ``start``, ``finished``, ``cancel``, ``until_logs`` are the usual requests. At the end of
    the block the server must leave with exit code 0, and without any file or process behind it.

    Without a model it is the nearest folder with a ``cog.yaml``, else the nearest file of that name: from the test's
    folder up to the root folder, then in the folders of the setting ``cog_trio_models``.
    """
    logs = request.node.stash.setdefault(LOGS, [])

    def serve(model: str | Path | None = None, *flags: str, **options: Any) -> AbstractAsyncContextManager[Server]:
        from cog_trio.testing.server import open_server

        log: list[Entry] = []
        path = str(model) if "command" in options else _found(request, model)
        logs.append((Path(path).name, log))
        options.setdefault("temporary", tmp_path / f"server-{len(logs)}")
        return open_server(path, *flags, log=log, **options)

    return serve


@pytest.fixture
def open_service(request: pytest.FixtureRequest) -> OpenService:
    """Run a model by a service in this process: ``async with open_service("predict.py") as service:``.

    ``open_service(model, *, settings, worker, env, ready, timeout)``. The block begins when the model is READY, unless
    ``ready=False``. ``service`` is what ``cog_trio.open_service`` gives: ``await service.predict({...})``. The model
    is found as for ``serve_model``; ``worker`` is one of ``fake_worker`` instead.
    """

    def start(model: str | Path | None = None, **options: Any) -> AbstractAsyncContextManager[PredictionService]:
        from cog_trio.testing.service import open_ready_service

        path = None if options.get("worker") is not None else _found(request, model)
        return open_ready_service(path, **options)

    return start


def _found(request: pytest.FixtureRequest, model: str | Path | None) -> str:
    return find_model(model, request.path, request.config.rootpath, request.config.getini(FOLDERS))
