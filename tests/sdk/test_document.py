"""The document as a whole: the worked example, the train half, and both in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV30SpecValidator
from packaging.version import Version

import cog_trio.sdk as cog
from cog_trio.sdk.schema import describe_signature, document
from cog_trio.worker.model.load import load_model, load_models
from tests.sdk.source import Models

GOLDEN = json.loads((Path(__file__).parent / "worked_example.json").read_text())

EXAMPLE = """\
class Runner(BaseRunner):
    @streaming
    def run(self,
        prompt: str = Input(description="What to say", min_length=1, max_length=200),
        image: Path = Input(description="Picture", accept="image/*"),
        steps: int = Input(default=20, ge=1, le=100),
        guidance_scale: float = Input(default=7.5, ge=0.5, le=20),
        style: str = Input(default="photo", choices=["photo", "sketch"]),
        size: int = Input(choices=[256, 512]),
        seed: Optional[int] = None,
        tags: list[str] = Input(default=["a", "b"]),
        extra: dict = Input(default={"k": 1}),
        api_key: Secret = Input(default=None),
        value: str | float = Input(description="either"),
        slug: str = Input(default="ok", regex="^[a-z]+$", deprecated=True),
    ) -> ConcatenateIterator[str]: ...
"""
TRAIN = """\
class TrainingOutput(BaseModel):
    weights: Path
    note: str | None = None
def train(data: Path = Input(description="zip"), epochs: int = Input(default=3, ge=1)) -> TrainingOutput: ...
"""


@pytest.mark.covers("D17")
def test_worked_example(models: Models) -> None:
    found = models.load(EXAMPLE).document
    assert Version(found["info"]["version"]) >= Version("0.23.1")
    assert found["info"]["version"] == cog.__version__
    assert {**found, "info": {"title": "Cog", "version": "0.23.1"}} == GOLDEN["predict"]


def test_worked_example_is_the_same_with_annotations_as_text(models: Models) -> None:
    from tests.sdk.source import PRELUDE

    ref = models.write("from __future__ import annotations\n" + PRELUDE + EXAMPLE)
    assert load_model(f"{ref}:Runner").document == models.load(EXAMPLE).document


def test_train_half(models: Models) -> None:
    found = models.load(TRAIN, "train", train=True).document
    schemas = found["components"]["schemas"]
    assert schemas["TrainingInput"] == GOLDEN["train"]["TrainingInput"]
    expected = {**GOLDEN["train"]["TrainingOutput"], "title": "TrainingOutput"}  # W18
    assert schemas["TrainingOutput"] == expected
    operation = found["paths"]["/trainings"]["post"]
    assert operation["summary"] == "Train"
    assert operation["operationId"] == "train_trainings_post"
    assert operation["description"] == "Run a single training on the model"
    cancel = found["paths"]["/trainings/{training_id}/cancel"]["post"]
    assert cancel["operationId"] == "cancel_trainings__training_id__cancel_post"
    assert cancel["parameters"][0]["schema"]["title"] == "Training Id"
    assert "/predictions" not in found["paths"]
    assert "Input" not in schemas


BOTH = """\
class Runner(BaseRunner):
    def run(self, a: str = Input(choices=["p"]), b: int = Input(choices=[1])) -> str: ...
def train(a: str = Input(choices=["t"]), b: int = Input(choices=[1])) -> str: ...
"""


@pytest.mark.covers("sdk:W17", "sdk:61", "lesson:64")
def test_row_61_W17_both_halves_keep_their_choices(models: Models) -> None:
    from tests.sdk.source import PRELUDE

    file = models.write(PRELUDE + BOTH)
    found = load_models(f"{file}:Runner", f"{file}:train")
    schemas = found.document["components"]["schemas"]
    assert schemas["a"]["enum"] == ["p"]
    assert schemas["TrainingInput_a"]["enum"] == ["t"]
    assert schemas["TrainingInput_a"]["title"] == "a"
    assert "TrainingInput_b" not in schemas
    assert found.predict is not None
    assert found.train is not None
    assert found.predict.inputs.component == "Input"
    assert found.train.inputs.component == "TrainingInput"
    assert {"/predictions", "/trainings"} < set(found.document["paths"])


@pytest.mark.parametrize(
    ("name", "title"), [("guidance_scale", "Guidance Scale"), ("aBC_dE", "ABC DE"), ("self_", "Self "), ("x", "X")]
)
def test_titles(name: str, title: str, models: Models) -> None:
    found = models.run(f"{name}: int").document["components"]["schemas"]["Input"]["properties"]
    assert found[name]["title"] == title


def references(value: Any, inside: str = "") -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return ([value] if "$ref" in value else []) + [found for item in value.values() for found in references(item)]
    return [found for item in value for found in references(item)] if isinstance(value, list) else []


def test_no_title_stands_beside_a_reference(models: Models) -> None:
    found = references(models.load(EXAMPLE).document)
    assert found
    assert all(set(reference) == {"$ref"} for reference in found)


@pytest.mark.covers("lesson:64")
def test_documents_are_valid_openapi(models: Models) -> None:
    for found in (models.load(EXAMPLE).document, models.load(TRAIN, "train", train=True).document):
        assert list(OpenAPIV30SpecValidator(found).iter_errors()) == []


def test_describe_needs_no_worker() -> None:
    def run(text: str, count: int = cog.Input(default=1, ge=1)) -> str:
        return text * count

    schemas = document(describe_signature(run))["components"]["schemas"]
    assert list(schemas["Input"]["properties"]) == ["text", "count"]
