"""`cog.config` of older releases: what ``cog.yaml`` and the environment say of the model."""

from __future__ import annotations

import os
from typing import Any, Final

from .errors import ConfigDoesNotExist, PredictorNotSet
from .mode import Mode

CONFIG_FILE: Final = "cog.yaml"


class Config:
    """The configuration of the model in the current folder; the environment wins over the file."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self._given = config

    @property
    def _config(self) -> dict[str, Any]:
        if self._given is None:
            self._given = _read(CONFIG_FILE)
        return self._given

    def _reference(self, variable: str, *keys: str) -> str | None:
        if found := os.environ.get(variable):
            return found
        if self._given is None and not os.path.isfile(CONFIG_FILE):
            return None
        values = [self._config[key] for key in keys if self._config.get(key)]
        if len(values) > 1:
            raise ValueError(f"{CONFIG_FILE}: give either {' or '.join(f'{key}:' for key in keys)}, not both")
        return str(values[0]) if values else None

    @property
    def predictor_predict_ref(self) -> str | None:
        return self._reference("COG_PREDICT_TYPE_STUB", "run", "predict")

    @property
    def predictor_train_ref(self) -> str | None:
        return self._reference("COG_TRAIN_TYPE_STUB", "train")

    @property
    def max_concurrency(self) -> int:
        text = os.environ.get("COG_MAX_CONCURRENCY", "")
        if text.isdecimal() and int(text) >= 1:
            return int(text)
        if self._given is None and not os.path.isfile(CONFIG_FILE):
            return 1
        return int(self._config.get("concurrency", {}).get("max", 1))

    @property
    def requires_gpu(self) -> bool:
        return bool(self._config.get("build", {}).get("gpu", False))

    def get_predictor_ref(self, mode: Mode) -> str:
        """The reference of a mode.

        Raises:
          PredictorNotSet: if there is none.
        """
        found = self.predictor_train_ref if mode is Mode.TRAIN else self.predictor_predict_ref
        if found is None:
            raise PredictorNotSet(f"{CONFIG_FILE} names no model for mode {mode}")
        return found


def _read(file: str) -> dict[str, Any]:
    import yaml

    try:
        with open(file, encoding="utf-8") as source:
            found = yaml.safe_load(source)
    except FileNotFoundError as error:
        raise ConfigDoesNotExist(f"there is no {file} in {os.getcwd()}") from error
    return found if isinstance(found, dict) else {}
