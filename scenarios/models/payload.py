"""The model of the payload benchmark: a file that is there already, the length of a text, a text of a length."""

import os
import tempfile

from cog import BaseRunner, Path


class Runner(BaseRunner):
    def setup(self) -> None:
        self.files: dict[int, str] = {}

    def run(self, text: str = "", file: int = 0, times: int = 0) -> str:
        if file:
            return Path(self._file(file))
        return "x" * times if times else str(len(text))

    def _file(self, size: int) -> str:
        if size not in self.files:
            handle, path = tempfile.mkstemp(suffix=".bin")
            with open(handle, "wb") as stream:
                stream.write(os.urandom(size))
            self.files[size] = path
        return self.files[size]
