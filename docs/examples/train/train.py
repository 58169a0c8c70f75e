"""Learns from a text which words follow each other; the weights are one file."""

import json
import tempfile
from itertools import pairwise

from cog import BaseModel, Input, Path, current_scope

FOLDER = tempfile.TemporaryDirectory()  # removed when the worker ends


class TrainingOutput(BaseModel):
    weights: Path
    words: int


def train(
    text: Path = Input(description="what to learn from"),
    epochs: int = Input(default=1, ge=1, le=100, description="times that the text is read"),
) -> TrainingOutput:
    words = text.read_text().lower().split()
    follows: dict[str, list[str]] = {}
    for epoch in range(epochs):
        for word, following in pairwise(words):
            follows.setdefault(word, []).append(following)
        print(f"epoch {epoch + 1} of {epochs}")
        current_scope().record_metric("epochs", epoch + 1)
    weights = Path(FOLDER.name) / "weights.json"
    weights.write_text(json.dumps(follows))
    return TrainingOutput(weights=weights, words=len(words))
