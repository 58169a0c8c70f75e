"""A base class in a file of its own; see style_wrapped.py."""

import functools

from cog import BaseRunner, Input


def counted(function):
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        self.calls += 1
        return function(self, *args, **kwargs)

    return wrapper


class Inputs:
    prompt: str = Input(default="sea", description="What to say", min_length=1)


class Base(BaseRunner):
    def setup(self):
        self.calls = 0

    @counted
    def run(self, prompt: str = Inputs.prompt, tags: list[str] = Input(default=["a"])) -> dict:
        tags.append(prompt)
        return {"calls": self.calls, "tags": tags, "name": self.name}
