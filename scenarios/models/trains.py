"""A prediction, and trainings in every form: a class with setup, functions of all kinds, one that shares the class."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator

import cog
from cog import BaseModel, BaseRunner, CancelationException, Input, Path, current_scope


class Runner(BaseRunner):
    def setup(self) -> None:
        print("setup of the runner")
        self.trained = 0

    def run(self, a: str = Input(default="x", choices=["x", "y"]), seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return f"ran {a}, trained {self.trained}"

    def train(self, rounds: int = Input(ge=1)) -> int:
        self.trained += rounds
        return self.trained


class Trainer:
    def setup(self) -> None:
        print("setup of the trainer")
        self.base = 40

    def train(self, a: int = Input(default=1, choices=[1, 2])) -> list[int]:
        print(f"training on {a}")
        current_scope().record_metric("loss", 0.5)
        return self.base + a  # type: ignore[return-value]  # one value for a list: the document says array


class AsyncRunner:
    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def run(self, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return f"same loop: {self.loop is asyncio.get_running_loop()}"


class AsyncTrainer:
    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def train(self, seconds: float = 0.0) -> AsyncIterator[str]:
        yield f"same loop: {self.loop is asyncio.get_running_loop()}"
        try:
            print("training")
            await asyncio.sleep(seconds)
        finally:
            print("cleaned up")
        yield "trained"


class Output(BaseModel):
    weights: Path
    note: str


def to_files(text: Path, folder: str) -> Output:
    weights = Path(folder) / "weights.bin"
    weights.write_bytes(text.read_bytes()[::-1])
    return Output(weights=weights, note="reversed")


def sync(seconds: float = 0.0, naps: int = 0, fail: bool = False) -> str:
    try:
        print("training")
        time.sleep(seconds)
        for _ in range(naps):
            time.sleep(0.01)
    except CancelationException:
        print("cleaned up")
        raise
    if fail:
        raise ValueError("no convergence")
    return "trained"


def epochs(count: int = 2) -> Iterator[str]:
    for number in range(count):
        yield f"epoch {number}"


@cog.trio
async def in_trio() -> str:
    return "trained"


async def coroutine(x: str) -> str:
    await asyncio.sleep(0)
    return f"trained on {x}"


class Weighted:
    def setup(self, device: str = "cpu", weights: Path | None = None) -> None:
        self.said = f"{device} {type(weights).__name__} {weights}"
        if weights is not None and os.path.exists(weights):
            self.said = weights.read_text()

    def run(self) -> str:
        return self.said
