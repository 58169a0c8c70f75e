"""What the fixtures are, for annotations: ``async def test_it(serve_model: ServeModel) -> None``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cog_trio.client import Client
    from cog_trio.config.settings import Settings
    from cog_trio.orchestrator.process import WorkerLink
    from cog_trio.portal import ServicePortal
    from cog_trio.service.service import PredictionService
    from cog_trio.testing.fakes import Behaviour, FakeWorker
    from cog_trio.testing.server_process import Server


class ServeModel(Protocol):
    """``async with serve_model("predict.py", "--queue", "3") as server:`` a real server, see ``open_server``."""

    def __call__(
        self,
        model: str | Path | None = None,
        *flags: str,
        status: str | None = "READY",
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        cwd: Path | None = None,
        temporary: Path | None = None,
        timeout: float = 30.0,
    ) -> AbstractAsyncContextManager[Server]: ...


class OpenService(Protocol):
    """``async with open_service("predict.py") as service:`` a service of this process, see ``open_ready_service``."""

    def __call__(
        self,
        model: str | Path | None = None,
        *,
        settings: Settings | None = None,
        worker: WorkerLink | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
        timeout: float = 30.0,
    ) -> AbstractAsyncContextManager[PredictionService]: ...


class StartServer(Protocol):
    """``with start_server("predict.py") as client:`` as ``ServeModel``, for plain functions."""

    def __call__(
        self, model: str | Path | None = None, *flags: str, **options: Any
    ) -> AbstractContextManager[Client]: ...


class StartService(Protocol):
    """``with start_service("predict.py") as service:`` as ``OpenService``, for plain functions."""

    def __call__(self, model: str | Path | None = None, **options: Any) -> AbstractContextManager[ServicePortal]: ...


class FakeWorkers(Protocol):
    """``async with fake_worker(answer("hi")) as worker:`` a worker without a process, see ``open_scripted_worker``."""

    def __call__(
        self,
        behaviour: Behaviour = ...,
        *,
        concurrency: int = 1,
        healthcheck: bool = False,
        document: Any = None,
    ) -> AbstractAsyncContextManager[FakeWorker]: ...
