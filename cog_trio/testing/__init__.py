"""For tests of your own: a pytest plugin, and what its fixtures are made of.

``pip install cog-trio[test]`` is enough for pytest to find the fixtures ``serve_model``, ``open_service``,
``fake_worker``, ``webhook_receiver``, ``file_server`` and ``upload_server`` (``plugin.py`` has them). The names below
are their parts, for annotations and for programs without pytest. Each is imported at its first use: pytest loads the
plugin in every project that has cog-trio installed, and most of them use nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cog_trio.testing.fakes import Behaviour, FakeWorker, open_fake_worker
    from cog_trio.testing.file_servers import FileServer, UploadServer, open_file_server, open_upload_server
    from cog_trio.testing.fixtures import FakeWorkers, OpenService, ServeModel, StartServer, StartService
    from cog_trio.testing.loopback import Reply, Request
    from cog_trio.testing.ready_service import open_ready_service
    from cog_trio.testing.scripts import answer, open_scripted_worker, scripted
    from cog_trio.testing.server_process import Server, open_server
    from cog_trio.testing.stream_clients import Event, Events
    from cog_trio.testing.webhook_receiver import WebhookReceiver, open_webhook_receiver

_HOMES = {
    "Behaviour": "fakes",
    "Event": "stream_clients",
    "Events": "stream_clients",
    "FakeWorker": "fakes",
    "FakeWorkers": "fixtures",
    "FileServer": "file_servers",
    "OpenService": "fixtures",
    "Reply": "loopback",
    "Request": "loopback",
    "ServeModel": "fixtures",
    "Server": "server_process",
    "StartServer": "fixtures",
    "StartService": "fixtures",
    "UploadServer": "file_servers",
    "WebhookReceiver": "webhook_receiver",
    "answer": "scripts",
    "open_fake_worker": "fakes",
    "open_file_server": "file_servers",
    "open_ready_service": "ready_service",
    "open_scripted_worker": "scripts",
    "open_server": "server_process",
    "open_upload_server": "file_servers",
    "open_webhook_receiver": "webhook_receiver",
    "scripted": "scripts",
}

__all__ = [
    "Behaviour",
    "Event",
    "Events",
    "FakeWorker",
    "FakeWorkers",
    "FileServer",
    "OpenService",
    "Reply",
    "Request",
    "ServeModel",
    "Server",
    "StartServer",
    "StartService",
    "UploadServer",
    "WebhookReceiver",
    "answer",
    "open_fake_worker",
    "open_file_server",
    "open_ready_service",
    "open_scripted_worker",
    "open_server",
    "open_upload_server",
    "open_webhook_receiver",
    "scripted",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
