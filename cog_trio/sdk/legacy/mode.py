"""`Mode`: what a server serves."""

from enum import Enum


class Mode(Enum):
    PREDICT = "predict"
    TRAIN = "train"

    def __str__(self) -> str:
        return str(self.value)
