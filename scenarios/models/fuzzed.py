"""Inputs of every kind, with all that can limit them; a run is over at once. It streams, and it trains."""

from collections.abc import Iterator
from typing import Any

from cog import BaseRunner, Input, Path, Secret, streaming


class Runner(BaseRunner):
    @streaming
    def run(
        self,
        text: str,
        count: int = Input(default=1, ge=0, le=5),
        scale: float = Input(default=1.0, ge=-10, le=10),
        word: str = Input(default="abc", min_length=1, max_length=5, regex="^[a-z]+$"),
        colour: str = Input(default="red", choices=["red", "green"]),
        size: int = Input(default=1, choices=[1, 2]),
        flag: bool = False,
        numbers: list[int] = Input(default=[1]),
        maybe: str | None = None,
        table: dict[str, Any] = Input(default={}),
        secret: Secret | None = None,
        file: Path | None = None,
        ends: str = Input(default="returns", choices=["returns", "raises"]),
    ) -> Iterator[str]:
        print(f"{text!r} {scale} {word} {colour} {size} {flag} {numbers} {maybe!r} {table} {file}")
        for number in range(count):
            yield f"{number} of {text}"
        if ends == "raises":
            raise ValueError(text)


def train(rounds: int = Input(ge=1, le=3), name: str = "x") -> list[str]:
    return [name] * rounds
