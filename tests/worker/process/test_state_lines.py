"""Where threads and tasks are: the innermost places first, and not of the thread that asks."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from cog_trio.worker.process import state_lines as module
from cog_trio.worker.process.state_lines import state_lines


def test_a_thread_and_a_task_are_told_with_their_places() -> None:
    told: list[str] = []
    loop = asyncio.new_event_loop()

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        tasks = [loop.create_task(waits_for_ever(), name=f"mine {number}") for number in range(3)]
        await asyncio.sleep(0)
        asked = threading.Thread(target=lambda: told.extend(state_lines(SimpleNamespace(loop=loop))))
        asked.start()
        asked.join()
        for task in tasks:
            task.cancel()

    loop.run_until_complete(main())
    loop.close()
    (thread,) = [line for line in told if line.startswith("state: thread MainThread is at ")]
    assert "test_state_lines.py:" in thread
    assert " main" in thread
    mine = [line for line in told if "task mine" in line]
    assert len(mine) == 3
    assert all("waits_for_ever" in line for line in mine)


def test_tasks_are_bounded() -> None:
    loop = asyncio.new_event_loop()

    async def main() -> list[str]:
        tasks = [loop.create_task(asyncio.sleep(60)) for _ in range(module.MAX_LINES + 50)]
        await asyncio.sleep(0)
        told = list(state_lines(SimpleNamespace(loop=loop)))
        for task in tasks:
            task.cancel()
        return told

    told = loop.run_until_complete(main())
    loop.close()
    assert sum(line.startswith("state: task ") for line in told) == module.MAX_LINES
    assert told[-1] == "state: and 51 more tasks"
