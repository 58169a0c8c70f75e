"""A model with an input of each kind, for the playground."""

import time
from typing import Any

from cog import BaseRunner, ConcatenateIterator, Input, Path, Secret, streaming


class Runner(BaseRunner):
    def setup(self) -> None:
        print("<b>set up</b>")

    @streaming
    def run(
        self,
        text: str = Input(description="A <i>text</i>"),
        number: float = Input(default=2.5),
        steps: int = Input(default=3, ge=1, le=1000, description="How many pieces"),
        kind: str = Input(default="short", choices=["short", "long"]),
        flag: bool = Input(default=False),
        password: Secret = Input(default=None),
        file: Path = Input(default=None),
        items: list[int] = Input(default=[1, 2]),
        extra: dict[str, Any] = Input(default={}),
        wait: float = Input(default=0.0, ge=0),
        old: str = Input(default="", deprecated=True),
    ) -> ConcatenateIterator[str]:
        size = None if file is None else file.stat().st_size
        print("\r10 %\r100 %")
        print(f"{number} {kind} {flag} {items} {extra} {size} {password is not None}")
        for step in range(steps):
            yield f"<img src=x onerror=document.title='owned'>{text}{step} "
            time.sleep(wait)
