"""Inputs with limits; says when it runs."""

from cog import BaseRunner, Input


class Runner(BaseRunner):
    def run(
        self,
        count: int = Input(ge=1, le=10),
        colour: str = Input(default="red", choices=["red", "green"]),
        word: str = Input(default="abc", max_length=5, regex="^[a-z]+$"),
    ) -> str:
        print("it ran")
        return f"{count} {colour} {word}"
