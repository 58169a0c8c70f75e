"""The pytest plugin: fixtures for tests of models, and of programs that use cog-trio.

pytest loads it wherever cog-trio is installed, so importing it imports nothing but pytest, and a test that uses none
of its fixtures pays nothing. What a fixture is made of is imported when the fixture is used.

``serve_model``, ``open_service`` and ``fake_worker`` are plain functions that give ``async with`` blocks: a server
lives exactly as long as its block, also when a test has several. The three loopback servers run for the whole test.
``start_server`` and ``start_service`` are the first two for tests that are plain functions. All others work with
pytest-trio, in ``trio_mode`` and with ``@pytest.mark.trio``. When a test fails, the report shows the logs of its
servers. A test with ``fake_worker`` has a fake clock, which jumps when everything waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cog_trio.testing.model_lookup import find_model

if TYPE_CHECKING:
    from collections.abc import Generator

    from cog_trio.service.service import PredictionService
    from cog_trio.testing.file_servers import FileServer, UploadServer
    from cog_trio.testing.fixtures import FakeWorkers, OpenService, ServeModel, StartServer, StartService
    from cog_trio.testing.server_process import Entry, Server
    from cog_trio.testing.webhook_receiver import WebhookReceiver

LOGS = pytest.StashKey["list[tuple[str, list[Entry]]]"]()  # of a test's servers, with what each of them serves
FOLDERS = "cog_trio_models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(FOLDERS, "folders with models for serve_model and open_service", type="paths", default=[])


@pytest.hookimpl(trylast=True)  # behind pytest-trio, which marks tests in trio_mode
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "fake_worker" in getattr(item, "fixturenames", ()) and (mark := item.get_closest_marker("trio")):
            item.add_marker(pytest.mark.trio(run=partial(_with_fake_clock, mark.kwargs.get("run"))), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    logs = item.stash.get(LOGS, [])
    if report.failed and logs:
        from cog_trio.testing.server_process import format_log

        report.sections += [(f"Captured log of the server of {model}", format_log(log)) for model, log in logs if log]
    if report.failed or report.when == "teardown":
        logs.clear()  # shown once, and not kept for the rest of the session
    return report


@pytest.fixture
def serve_model(request: pytest.FixtureRequest, tmp_path: Path) -> ServeModel:
    """Serve a model by a real server on a free port: ``async with serve_model("predict.py") as server:``.

    ``serve_model(model, *flags, status, env, command, cwd, temporary, timeout)``; flags are those of ``cog-trio
    serve``. The block begins when the model is READY. ``server.client`` is an ``httpx.AsyncClient`` for the server,
    and ``server.predict``, ``start``, ``finished``, ``cancel``, ``until_logs`` are the usual requests. At the end of
    the block the server must leave with exit code 0, and without any file or process behind it.

    A model is looked for in the folders of the setting ``cog_trio_models``, then from the test's folder up to the root
    folder. Without one it is the nearest folder there with a ``cog.yaml``.
    """
    logs = request.node.stash.setdefault(LOGS, [])

    def serve(model: str | Path | None = None, *flags: str, **options: Any) -> AbstractAsyncContextManager[Server]:
        from cog_trio.testing.server_process import open_server

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
        from cog_trio.testing.ready_service import open_ready_service

        path = None if options.get("worker") is not None else _found(request, model)
        return open_ready_service(path, **options)

    return start


@pytest.fixture
def start_server(serve_model: ServeModel) -> StartServer:
    """As ``serve_model``, for tests that are plain functions: ``with start_server("predict.py") as client:``.

    ``client`` is a ``cog_trio.client.Client`` of the server; ``client.url`` is where it is.
    """
    from cog_trio.testing.blocking import serve_in_thread

    return partial(serve_in_thread, serve_model)


@pytest.fixture
def start_service(open_service: OpenService) -> StartService:
    """As ``open_service``, for tests that are plain functions: ``with start_service("predict.py") as service:``.

    ``service`` is what ``cog_trio.portal.start_service`` gives: ``service.predict({...})``.
    """
    from cog_trio.testing.blocking import open_in_thread

    return partial(open_in_thread, open_service)


@pytest.fixture
def fake_worker() -> Iterator[FakeWorkers]:
    """A worker without a process, for services of this process: ``async with fake_worker(answer("hi")) as worker:``.

    ``fake_worker(behaviour, *, concurrency, healthcheck, document)``; hand it to ``open_service(worker=worker)``. It
    speaks real frames over memory streams, and a test that uses it has a fake clock: hours pass at once. Behaviours
    are ``answer`` and ``scripted`` of ``cog_trio.testing``, and the failures of ``cog_trio.testing.fakes``; the default
    gives each input back. Without a ``document`` (of OpenAPI) every input is taken.
    """
    from cog_trio.testing.clock import threads_hold_the_clock
    from cog_trio.testing.scripts import open_scripted_worker

    with threads_hold_the_clock():
        yield open_scripted_worker


@pytest.fixture
async def webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks for the length of the test: name ``webhook_receiver.url`` as ``webhook``.

    ``await webhook_receiver.until(id)`` waits for the end of a prediction and gives all that came for it;
    ``states(id)`` are their bodies. ``script`` (a list of ``Reply``) says how the next ones are answered.
    """
    from cog_trio.testing.webhook_receiver import open_webhook_receiver

    async with open_webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
async def file_server() -> AsyncIterator[FileServer]:
    """A server for files that are inputs: ``url = file_server.add("cat.png", data)``; ``paths`` were asked for."""
    from cog_trio.testing.file_servers import open_file_server

    async with open_file_server() as server:
        yield server


@pytest.fixture
async def upload_server() -> AsyncIterator[UploadServer]:
    """A server that takes output files: ``serve_model("predict.py", "--upload-url", upload_server.url)``.

    ``uploads`` are those that were taken: each has ``path``, ``headers``, ``size``, ``sha256`` and ``content``.
    """
    from cog_trio.testing.file_servers import open_upload_server

    async with open_upload_server() as server:
        yield server


def _found(request: pytest.FixtureRequest, model: str | Path | None) -> str:
    return find_model(model, request.path, request.config.rootpath, request.config.getini(FOLDERS))


def _with_fake_clock(run: Callable[..., Any] | None, function: Callable[..., Any], **options: Any) -> Any:
    """Run a test as pytest-trio does, on a clock that jumps, unless the test has one of its own."""
    import trio
    from trio.testing import MockClock

    options["clock"] = options.get("clock") or MockClock(autojump_threshold=0)
    return (run or trio.run)(function, **options)
