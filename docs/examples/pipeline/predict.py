"""A trio model: predictions that share a batch, and a run that is a small pipeline of tasks.

The nursery of ``setup`` lasts as long as the worker: in it one task gathers what concurrent predictions ask for, and
answers them together, as a GPU would like it. The nursery in ``run`` lasts as long as the run: a cancel, a time-out or
the failure of one task ends all of them.
"""

from collections.abc import AsyncIterator

import cog
import trio
from cog import BaseRunner, Input

BATCH = 8  # texts that are answered together, at most
PATIENCE = 0.05  # seconds that the first of a batch waits for others


class Runner(BaseRunner):
    async def setup(self, nursery: trio.Nursery) -> None:
        self.ask, asked = trio.open_memory_channel[tuple[str, trio.MemorySendChannel[str]]](BATCH)
        nursery.start_soon(self.serve_batches, asked)

    @cog.trio
    @cog.concurrent(max=8)
    @cog.streaming
    async def run(
        self,
        text: str = Input(default="the quick brown fox", description="Each of its words is worked on"),
        timeout: float = Input(default=10, ge=0.1, le=60, description="Seconds for all of them"),
    ) -> AsyncIterator[str]:
        done_send, done = trio.open_memory_channel[str](0)
        with trio.fail_after(timeout):
            async with trio.open_nursery() as nursery:
                async with done_send:
                    for word in text.split():
                        nursery.start_soon(self.work_on, word, done_send.clone())
                async for answer in done:
                    yield answer

    async def work_on(self, word: str, done: trio.MemorySendChannel[str]) -> None:
        print(f"asking for {word}")
        async with done:
            answer_send, answer = trio.open_memory_channel[str](1)
            await self.ask.send((word, answer_send))
            await done.send(await answer.receive())

    async def serve_batches(self, asked: trio.MemoryReceiveChannel[tuple[str, trio.MemorySendChannel[str]]]) -> None:
        async for first in asked:
            batch = [first]
            with trio.move_on_after(PATIENCE):
                while len(batch) < BATCH:
                    batch.append(await asked.receive())
            for word, answer in batch:
                answer.send_nowait(f"{word.upper()} (one of {len(batch)})")
