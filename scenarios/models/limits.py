"""Says too much, in every way there is."""

import os
import sys
from typing import Any

from cog import BaseRunner, Input, Path


class Runner(BaseRunner):
    def setup(self) -> None:
        self.sick = False
        if size := int(os.environ.get("SETUP_ERROR", "0")):
            raise RuntimeError("\x01" * size)

    def healthcheck(self) -> bool:
        if self.sick:
            raise RuntimeError("h" * 9 * 2**20)
        return True

    def run(
        self,
        what: str = Input(default="", description="d" * int(os.environ.get("DESCRIPTION", "0"))),
        size: int = 0,
        text: str = "x",
    ) -> Any:
        return getattr(self, what)(size, text)

    def output(self, size: int, text: str) -> Any:
        return text * size

    def yields(self, size: int, text: str) -> Any:
        return (text * size for _ in range(3))

    def error(self, size: int, text: str) -> Any:
        raise ValueError(text * size)

    def log(self, size: int, text: str) -> Any:
        print(text * size)
        print("after")
        sys.stderr.write(text * size)
        return "ok"

    def raw(self, size: int, text: str) -> Any:
        data = (text * size).encode()
        while data:
            data = data[os.write(1, data) :]
        return "ok"

    def metric(self, size: int, text: str) -> Any:
        self.record_metric("m", text * size)
        return "ok"

    def context(self, size: int, text: str) -> Any:
        return len(self.scope.context.get("key", ""))

    def files(self, size: int, text: str) -> Any:
        path = Path(__file__)
        return {"files": [path] * size}

    def deep(self, size: int, text: str) -> Any:
        value: Any = 1
        for _ in range(size):
            value = [value]
        return {"value": value}

    def ill(self, size: int, text: str) -> Any:
        self.sick = True
        return "ok"
