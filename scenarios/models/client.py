"""What a client can meet: items, files, prints, waits and faults."""

import time
from collections.abc import Iterator

from cog import BaseModel, BaseRunner, Input, Path, current_scope, streaming


class Output(BaseModel):
    files: list[Path]
    size: int


class Runner(BaseRunner):
    @streaming
    def run(self, words: list[str] = Input(default=[]), wait: float = 0.0, fail: str = "") -> Iterator[str]:
        print("begins")
        current_scope().record_metric("words", len(words))
        yield from words
        time.sleep(wait)
        if fail:
            raise ValueError(fail)


class Files(BaseRunner):
    def run(self, file: Path, files: list[Path] = Input(default=[])) -> Output:
        copies = [file, *files]
        return Output(files=copies, size=sum(copy.stat().st_size for copy in copies))
