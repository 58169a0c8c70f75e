"""A task in the worker's own nursery that answers all runs, and may give up."""

import cog
import trio
from cog import BaseRunner


class Runner(BaseRunner):
    async def setup(self, nursery: trio.Nursery) -> None:
        self.ask, asked = trio.open_memory_channel(16)
        nursery.start_soon(self.answer, asked)

    async def answer(self, asked) -> None:
        async with asked:
            async for number, reply in asked:
                if number < 0:
                    raise ConnectionError("the backend is gone")
                reply.send_nowait(2 * number)

    @cog.trio
    @cog.concurrent(max=4)
    async def run(self, number: int) -> int:
        reply_send, reply = trio.open_memory_channel(1)
        await self.ask.send((number, reply_send))
        return await reply.receive()
