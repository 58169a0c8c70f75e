"""What plain functions use in place of the ``async with`` blocks: the same blocks, held open by a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog_trio.client import Client
from cog_trio.portal import ServicePortal, TrioThread

if TYPE_CHECKING:
    from cog_trio.testing.fixtures import OpenService, ServeModel


@contextmanager
def serve_in_thread(
    serve_model: ServeModel, model: str | Path | None = None, *flags: str, **options: Any
) -> Iterator[Client]:
    """A server for the length of a block, and a client of it. Raises: as ``open_server``."""
    thread = TrioThread(partial(serve_model, model, *flags, **options), "cog_trio server of a test")
    thread.start()
    failed = True
    try:
        with Client(thread.block.url) as client:
            yield client
        failed = False
    finally:
        thread.stop(at_once=failed)


@contextmanager
def open_in_thread(
    open_service: OpenService, model: str | Path | None = None, **options: Any
) -> Iterator[ServicePortal]:
    """A service for the length of a block. Raises: as ``open_ready_service``."""
    portal = ServicePortal(partial(open_service, model, **options))
    with portal.running():
        yield portal
