"""A receiver of webhooks: it keeps what comes, tells predictions apart by their ids, and can wait for an end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from cog_trio.testing.loopback import OK, Loopback, Reply, Request, open_loopback
from cog_trio.testing.processes import POLL
from cog_trio.testing.server_process import ENDS, SOON


@dataclass
class WebhookReceiver(Loopback):
    """Name its ``url`` as ``webhook`` of predictions. ``usual`` and ``script`` say how they are answered."""

    def of(self, id: str) -> list[Request]:
        """What came for one prediction, in order."""
        return [request for request in self.came if request.json()["id"] == id]

    def states(self, id: str) -> list[dict[str, Any]]:
        """The states of one prediction that came, in order."""
        return [request.json() for request in self.of(id)]

    def ends(self, id: str) -> list[Request]:
        """Those of one prediction that say its end: one, unless an answer got lost or refused it."""
        return [request for request in self.of(id) if request.json()["status"] in ENDS]

    async def until(self, id: str, count: int = 1, seconds: float = SOON) -> list[Request]:
        """Wait until the end of a prediction has been told so often; all that came for it.

        Raises:
          AssertionError: if it was not after so long.
        """
        with trio.move_on_after(seconds):
            while len(self.ends(id)) < count:
                await trio.sleep(POLL)
            return self.of(id)
        raise AssertionError(f"the end of {id} was told {len(self.ends(id))} times; what came: {self.states(id)}")


@asynccontextmanager
async def open_webhook_receiver(usual: Reply = OK, *script: Reply) -> AsyncIterator[WebhookReceiver]:
    """A receiver for the length of a block; see ``open_loopback``."""
    async with open_loopback(WebhookReceiver(usual=usual, script=list(script))) as receiver:
        yield receiver
