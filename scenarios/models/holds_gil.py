"""One long call into C that never lets go of the interpreter and looks at no signal."""

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, millions: int = 100) -> str:
        print("started", flush=True)
        sum(range(millions * 1_000_000))
        return "done"
