"""Eight at once, each writing half lines around awaits, in tasks and in threads of all kinds; and metrics."""

import asyncio
import os
import sys
import threading

from cog import BaseRunner, concurrent, current_scope


class Runner(BaseRunner):
    @concurrent(max=8)
    async def run(self, name: str, parts: int = 3) -> str:
        loop = asyncio.get_running_loop()
        scope = current_scope()

        async def write(kind: str) -> None:
            for part in range(parts):
                print(f"<{name}.{kind}.{part}", end="")
                await asyncio.sleep(0)
                print(">", file=sys.stdout)
                current_scope().record_metric("parts", 1, mode="incr")

        def write_in_thread(kind: str) -> None:
            for part in range(parts):
                print(f"<{name}.{kind}.{part}", end="")
                os.sched_yield()
                print(">")
                current_scope().record_metric("parts", 1, mode="incr")

        await write("main")
        await asyncio.gather(write("task"), asyncio.sleep(0))
        await asyncio.to_thread(write_in_thread, "to_thread")
        await loop.run_in_executor(None, write_in_thread, "executor")
        thread = threading.Thread(target=write_in_thread, args=("thread",))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0)
        print(f"<{name}.error.0>", file=sys.stderr)
        scope.record_metric("name", name)
        print(f"<{name}.end.0>", end="")
        return name
