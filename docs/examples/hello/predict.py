"""The smallest model: a text in, a text out."""

from cog import BaseRunner, Input


class Runner(BaseRunner):
    def setup(self) -> None:
        self.greeting = "hello"

    def run(self, name: str = Input(default="world", description="Who is greeted")) -> str:
        return f"{self.greeting} {name}"
