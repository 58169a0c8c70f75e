"""Says which words follow each other in what it was trained on; without weights it knows one sentence."""

import json
import random

from cog import BaseRunner, Input, Path


class Runner(BaseRunner):
    def setup(self, weights: Path | None = None) -> None:
        if weights is None:
            self.follows = {"hello": ["world"]}
        else:
            self.follows = json.loads(weights.read_text())

    def run(self, word: str = "hello", words: int = Input(default=8, ge=1, le=1000), seed: int = 0) -> str:
        choose = random.Random(seed).choice
        said = [word]
        while len(said) < words and said[-1] in self.follows:
            said.append(choose(self.follows[said[-1]]))
        return " ".join(said)
