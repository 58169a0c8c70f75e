"""Puts out many bytes: as a file, as chunks of a stream, or as printed lines."""

from cog import BaseRunner, ConcatenateIterator, Input, Path

MIB = 2**20


class Chunks(BaseRunner):
    def run(
        self, mib: int = Input(default=1, ge=0), size: int = 1073, lines: int = 0, width: int = 0
    ) -> ConcatenateIterator[str]:
        for number in range(lines):
            print(f"line {number}" + "x" * width)
        left = mib * MIB
        while left:
            chunk = "x" * min(size, left)
            left -= len(chunk)
            yield chunk


class File(BaseRunner):
    def run(self, folder: str, mib: int = Input(default=1, ge=0)) -> Path:
        with open(f"{folder}/poured.bin", "wb") as file:
            for _ in range(mib):
                file.write(b"x" * MIB)
        return Path(file.name)
