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
    from cog_trio.testing.fixtures import OpenService, ServeModel
    from cog_trio.testing.server import Server, open_server
    from cog_trio.testing.service import open_ready_service

_HOMES = {
    "OpenService": "fixtures",
    "ServeModel": "fixtures",
    "Server": "server",
    "open_ready_service": "service",
    "open_server": "server",
}

__all__ = ["OpenService", "ServeModel", "Server", "open_ready_service", "open_server"]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
