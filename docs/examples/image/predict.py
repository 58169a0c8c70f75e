"""Blurs a picture: a file in, a file out.

The input arrives as a file on disk, whatever the client sent (a data URL or an http URL). The output is a file
too; it becomes a data URL in the reply.
"""

import tempfile

from cog import BaseRunner, Input, Path
from PIL import Image, ImageFilter


class Runner(BaseRunner):
    def setup(self) -> None:
        Image.init()  # load the decoders now, not in the first prediction
        self.folder = tempfile.TemporaryDirectory()  # removed when the worker ends

    def run(
        self,
        image: Path = Input(description="The picture, PNG or JPEG"),
        radius: float = Input(default=4.0, ge=0, le=100, description="Radius of the blur in pixels"),
    ) -> Path:
        with Image.open(image) as picture:
            kind = picture.format if picture.format in ("PNG", "JPEG") else "PNG"
            print(f"{picture.format} {picture.width}x{picture.height}, radius {radius}")
            if picture.mode not in ("RGB", "RGBA", "L"):
                picture = picture.convert("RGBA" if kind == "PNG" else "RGB")
            blurred = picture.filter(ImageFilter.GaussianBlur(radius))
        output = Path(self.folder.name) / f"blurred.{kind.lower()}"
        blurred.save(output, kind)
        return output
