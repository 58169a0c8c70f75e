"""docs/reference/model.md: every signature on it has the fragment, the values and the refusals that it tells."""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import io
import json
import pathlib
import re
import sys
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import cog_trio.sdk as cog
from cog_trio.worker.model.output_values import OutputEncoder
from cog_trio.worker.model.run_folder import RunFolder
from tests.sdk.source import Models, arguments, input_of, is_listed, output_of, refusal

PAGE: Final = (Path(__file__).parent.parent.parent / "docs" / "reference" / "model.md").read_text()
BEFORE: Final = PAGE.partition("```python\n")[2].partition("```")[0]
CODE: Final = re.compile(r"`((?:[^`\\]|\\.)+)`")
PAIR: Final = re.compile(r"(left out|`(?:[^`\\]|\\.)+`) → `((?:[^`\\]|\\.)+)`")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _rows(*heads: str) -> Iterator[list[str]]:
    """The rows of all tables with these heads."""
    inside = False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            inside = False
        elif _cells(line) == list(heads):
            inside = True
        elif inside and not line.startswith("|---"):
            yield [cell.replace(r"\|", "|") for cell in _cells(line)]


def _codes(cell: str) -> list[str]:
    return CODE.findall(cell)


class Told(NamedTuple):
    parameter: str
    fragment: str
    required: str
    pairs: list[tuple[str, str]]
    refused: list[str]


INPUTS: Final = [
    Told(_codes(row[0])[0], "".join(_codes(row[1])), row[2], PAIR.findall(row[3]), _codes(row[4]))
    for row in _rows("parameter", "in the document", "required", "JSON → what `run` sees", "refused")
]
LOAD: Final = [(_codes(row[0])[0], _codes(row[1])[0]) for row in _rows("parameter", "the text says")]
OUTPUTS: Final = [(_codes(row[0])[0], _codes(row[1])[0]) for row in _rows("annotation", "in the document")]
VALUES: Final = [(_codes(row[0])[0], _codes(row[1])[0]) for row in _rows("value", "JSON")]


def _space(models: Models) -> dict[str, Any]:
    """The names that the page assumes, as the model that was loaded last has them."""
    module = sys.modules[f"model_{max(int(file.stem[6:]) for file in models.folder.glob('model_*.py'))}"]
    more = {"io": io, "datetime": datetime, "decimal": decimal, "uuid": uuid, "pathlib": pathlib, "enum": enum}
    return {**vars(module), **more, "URLFile": cog.URLFile}


def test_the_tables_are_read() -> None:
    assert [len(table) >= least for table, least in ((INPUTS, 40), (LOAD, 10), (OUTPUTS, 15), (VALUES, 10))] == [
        True
    ] * 4
    assert all(told.pairs for told in INPUTS)


@pytest.mark.parametrize("told", INPUTS, ids=lambda told: told.parameter)
def test_input(told: Told, models: Models) -> None:
    model = models.run(told.parameter, BEFORE)
    if told.parameter == "**x":
        ((given, expected),) = told.pairs
        assert arguments(model, json.loads(given.strip("`"))) == eval(expected)
        return
    assert input_of(model) == json.loads(told.fragment)
    assert is_listed(model) == (told.required == "yes")
    space = _space(models)
    for given, text in told.pairs:
        found = arguments(model, {} if given == "left out" else {"x": json.loads(given.strip("`"))})["x"]
        expected = eval(text, space)
        if isinstance(expected, type):
            assert type(found) is expected
        else:
            assert (type(found), found) == (type(expected), expected)
    for given in told.refused:
        assert refusal(model, {"x": json.loads(given)})


@pytest.mark.parametrize(("parameter", "text"), LOAD, ids=[row[0] for row in LOAD])
def test_refused_at_load(parameter: str, text: str, models: Models) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(text)) as caught:
        models.run(parameter, BEFORE)
    assert re.search(r"\bx\b", str(caught.value))


@pytest.mark.parametrize(("annotation", "fragment"), OUTPUTS, ids=[row[0] for row in OUTPUTS])
def test_output(annotation: str, fragment: str, models: Models) -> None:
    assert output_of(models.run("", BEFORE, annotation)) == json.loads(fragment)


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[row[0] for row in VALUES])
def test_value(value: str, expected: str, models: Models, tmp_path: Path) -> None:
    models.run("", BEFORE)
    item = OutputEncoder(RunFolder(str(tmp_path / "out"))).item(eval(value, _space(models)))
    assert isinstance(item, bytes)
    assert json.loads(item) == json.loads(expected)


def test_every_argument_of_input_is_on_the_page() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parameters = set(inspect.signature(cog.Input).parameters) - {"args", "default_factory"}
    (told,) = re.findall(r"^`Input\((.*?)\)`", PAGE, re.MULTILINE)
    assert set(re.findall(r"\w+", told)) == parameters
