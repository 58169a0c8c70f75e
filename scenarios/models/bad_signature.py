"""Parameters of which most can't be inputs."""

from cog import BaseModel, BaseRunner, Input, Path


class Thing(BaseModel):
    a: int


class Runner(BaseRunner):
    def run(
        self,
        raw: bytes,
        plain,
        thing: Thing,
        mixed: str | Path,
        nested: list[list[int]],
        lost: "Nowhere",
        word: str = Input(regex="["),
        few: int = Input(default=1, ge=2),
        either: int | str = Input(ge=1),
        what: str = Input(accept="image/*"),
        good: int = 3,
    ) -> tuple: ...
