"""An output class of pydantic 2 with files in it, as models of the FastAPI years have."""

import tempfile
from typing import List, Optional

import cog
from pydantic import BaseModel, Field


class Score(BaseModel):
    name: str
    value: float = Field(ge=0)


class Output(BaseModel):
    image: cog.Path
    scores: List[Score]
    mask: Optional[cog.Path] = None
    token: cog.Secret = cog.Secret("hidden")


class Predictor(cog.BasePredictor):
    def setup(self):
        self.folder = tempfile.TemporaryDirectory()

    def predict(self, text: str = cog.Input(description="What to write")) -> Output:
        image = cog.Path(self.folder.name) / "image.txt"
        image.write_text(text)
        return Output(image=image, scores=[Score(name="a", value=0.5)])
