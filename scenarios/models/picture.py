"""Takes a picture and gives one back: turned over, as a PNG that is not compressed."""

import tempfile

from cog import BaseRunner, Path
from PIL import Image, ImageOps


class Runner(BaseRunner):
    def setup(self) -> None:
        self.folder = tempfile.TemporaryDirectory()

    def run(self, image: Path) -> Path:
        with Image.open(image) as picture:
            print(f"{picture.format} {picture.width}x{picture.height}, {image.stat().st_size} bytes")
            turned = ImageOps.flip(picture)
        output = Path(self.folder.name) / "turned.png"
        turned.save(output, compress_level=0)
        return output
