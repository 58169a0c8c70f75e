"""Two models in one trio program: the words that the first one yields go into the second while the first goes on.

Each model runs in a worker process of its own. The program has no server, and needs none.
"""

from pathlib import Path

import trio

from cog_trio import Output, open_service

HERE = Path(__file__).parent


async def main() -> None:
    async with open_service(HERE / "split.py") as split, open_service(HERE / "shout.py") as shout:
        await split.wait_ready()
        await shout.wait_ready()

        async with split.stream({"text": "two models in one program"}) as stream:
            async for event in stream:
                if isinstance(event, Output):
                    loud = await shout.predict({"word": event.value})
                    print(loud.result())

        with trio.move_on_after(1) as deadline:
            await shout.predict({"word": "never", "seconds": 30})
        if deadline.cancelled_caught:
            print("too slow: cancelled after 1 second")

        print((await shout.predict({"word": "again"})).result())  # the model has stopped, its slot is free


if __name__ == "__main__":
    trio.run(main)
