"""Models that write text, for OpenAI's API."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from cog import BaseRunner, ConcatenateIterator, Input, concurrent, current_scope


class Runner(BaseRunner):
    def run(
        self,
        prompt: str,
        max_tokens: int = Input(default=5, ge=1),
        temperature: float = 1.0,
        stop: list[str] = Input(default=[]),
        fail: bool = False,
        seconds: float = 0.0,
    ) -> ConcatenateIterator[str]:
        scope = current_scope()
        scope.record_metric("input_token_count", len(prompt.split()))
        for number in range(max_tokens):
            if fail and number == 2:
                raise ValueError("no words left")
            yield f" word{number}"
            scope.record_metric("output_token_count", number + 1)
            time.sleep(seconds)
        print(prompt, temperature, stop)


class Chat(BaseRunner):
    @concurrent(max=2)
    async def run(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] = Input(default=[])
    ) -> AsyncIterator[str]:
        for message in messages:
            yield f"{message['role']} said {message['content']}. "
            await asyncio.sleep(0)
        yield f"{len(tools)} tools"


class Whole(BaseRunner):
    def run(self, prompt: str) -> str:
        return f"<{prompt}>"


class Number(BaseRunner):
    def run(self, prompt: str) -> int:
        return len(prompt)
