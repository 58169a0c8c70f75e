"""Three children in a nursery of trio: each says when it begins and when it is cancelled; one may fail, or block."""

import time

import cog
import trio
from cog import BaseRunner


@cog.trio
class Runner(BaseRunner):
    async def setup(self) -> None:
        self.limit = trio.CapacityLimiter(9)

    @cog.concurrent(max=3)
    async def run(self, how: str = "wait", name: str = "") -> str:
        async with trio.open_nursery() as nursery:
            for child in ("one", "two", "three"):
                nursery.start_soon(self.child, name + child, how)
        return f"{name}done"

    async def child(self, name: str, how: str) -> None:
        async with self.limit:
            print(name, "begins")
            cog.current_scope().record_metric("children", 1, "incr")
            try:
                await trio.to_thread.run_sync(print, f"{name} in a thread")
                if how == "fail" and name == "two":
                    raise ValueError("two gives up")
                if how == "block" and name == "three":
                    print("blocking")
                    time.sleep(30)  # noqa: ASYNC251
                if how != "none":
                    await trio.sleep(30)
            except trio.Cancelled:
                with trio.move_on_after(1, shield=True):
                    await trio.sleep(0.01)
                print(name, "cancelled")
                raise

    async def healthcheck(self) -> bool:
        await trio.lowlevel.checkpoint()
        return self.limit.borrowed_tokens <= 9
