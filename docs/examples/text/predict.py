"""A toy language model: yields its answer token by token.

It learns which word follows which from a short text at setup, and continues a prompt by chance.
"""

import random
import re
import time

from cog import BaseRunner, ConcatenateIterator, Input, streaming

TEXT = """
The sea was calm and the boat was small. The wind was in the sail and the sail was white.
The small boat went out to the calm sea, and the white sail was in the wind.
"""


class Runner(BaseRunner):
    def setup(self) -> None:
        words = re.findall(r"\w+|[.,]", TEXT.lower())
        self.following: dict[str, list[str]] = {}
        for word, after in zip(words, words[1:] + words[:1], strict=True):
            self.following.setdefault(word, []).append(after)

    @streaming
    def run(
        self,
        prompt: str = Input(default="the sea", description="What the text begins with"),
        tokens: int = Input(default=20, ge=1, le=10_000, description="How many tokens to write"),
        seed: int = Input(default=0, description="The same seed writes the same text"),
        delay: float = Input(default=0.0, ge=0, le=10, description="Seconds between tokens"),
    ) -> ConcatenateIterator[str]:
        chance = random.Random(seed)
        word = (re.findall(r"\w+", prompt.lower()) or ["the"])[-1]
        for _ in range(tokens):
            word = chance.choice(self.following.get(word) or self.following["the"])
            yield word if word in ".," else f" {word}"
            time.sleep(delay)
