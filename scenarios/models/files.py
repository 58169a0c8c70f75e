"""Files in and out, in the ways that models do it."""

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cog import BaseRunner, Input, Path

WRITER = """
import os, sys, time
end = time.monotonic() + 2
while time.monotonic() < end:
    for number in range(100):
        try:
            open(f"{sys.argv[1]}/{number}", "w").close()
        except FileNotFoundError:
            break
"""


@dataclass
class Picture:
    image: Path
    title: str


class Runner(BaseRunner):
    def setup(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="model-")

    def _write(self, name: str, data: bytes) -> Path:
        path = Path(self.folder.name) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def run(
        self,
        what: str = "input",
        image: Path = None,
        images: list[Path] = Input(default=[]),
        size: int = 1,
        text: str = "",
    ) -> Any:
        return getattr(self, what)(image, images, size, text)

    def input(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return image

    def leave_a_writer(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        """Leave a child behind that writes beside the input for two seconds."""
        folder = image.resolve().parent
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
        while not (folder / "0").exists():
            time.sleep(0.001)
        return "left"

    def inputs(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        print("started", time.time())
        return [path.read_text() for path in images]

    def twice(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return [image, image]

    def one(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return self._write(text or "out.bin", b"x" * size)

    def sparse(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        path = Path(self.folder.name) / "sparse.bin"
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def several(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return [self._write(f"{name}.txt", name.encode()) for name in text.split(",")]

    def same(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return [self._write(f"{folder}/out.txt", folder.encode()) for folder in ("a", "b")]

    def nested(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        picture = Picture(self._write("a b#c.txt", b"a"), "t")
        return {"picture": picture, "more": [[io.StringIO("é")], self._write("b.png", b"b" * size)], "n": 1}

    def overwritten(self, image: Path, images: list[Path], size: int, text: str) -> Iterator[Path]:
        for number in range(size):
            yield self._write("frame.txt", str(number).encode())

    def stuck(self, image: Path, images: list[Path], size: int, text: str) -> Iterator[Path]:
        yield self._write("out.txt", b"x")
        time.sleep(60)

    def missing(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return Path("/nowhere/missing.png")

    def temporary(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return io.BytesIO(os.urandom(size))

    def nothing(self, image: Path, images: list[Path], size: int, text: str) -> Any:
        return "ok"
