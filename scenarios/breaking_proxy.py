"""A proxy between a client and a server, which breaks a stream once."""

from __future__ import annotations

from contextlib import suppress

import trio


class BreakingProxy:
    """A proxy that cuts its first connection of a stream once some words have passed."""

    def __init__(self, port: int, words: bytes) -> None:
        self._port = port
        self._words = words
        self.broken = 0

    async def serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._pass_on, listeners)

    async def _pass_on(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", self._port) as server:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._copy, client, server)
                    await self._copy(server, client)
                    nursery.cancel_scope.cancel()

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for data in source:
            await target.send_all(data)
            if self._words in data and not self.broken:
                self.broken += 1
                return
