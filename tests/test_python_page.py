"""docs/reference/python.md says what the package has: every name, signature, field and base, and nothing else."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest

import cog_trio
from cog_trio.bridge.protocol import Mode
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction

PAGE: Final = (Path(__file__).parent.parent / "docs" / "reference" / "python.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows below a heading."""
    _, found, rest = PAGE.partition(f"\n## {heading}\n")
    assert found, heading
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def signature(function: Any) -> str:
    """As the page shows it: names and defaults."""
    parts: list[str] = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            parts.append("*")
        default = parameter.default
        if default is parameter.empty:
            parts.append(parameter.name)
        else:
            shown = str(default) if default is None else getattr(default, "__name__", str(default))
            if isinstance(default, enum.Enum):
                shown = f"{type(default).__name__}.{default.name}"
            parts.append(f"{parameter.name}={shown}")
    return f"({', '.join(parts)})"


def calls(heading: str) -> list[tuple[str, str, bool]]:
    """Name, signature and whether it is awaited, of each function that a table shows."""
    found = [re.match(r"`(await )?(\w+)(\(.*?\))`", row[0]) for row in table(heading)]
    return [(match[2], match[3], bool(match[1])) for match in found if match]


@pytest.mark.parametrize("name", cog_trio.__all__)
def test_every_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"`(?:cog_trio\.)?{re.escape(name)}[`(]", PAGE)


@pytest.mark.parametrize(("name", "shown", "awaited"), calls("Functions"))
def test_functions_are_as_they_are_shown(name: str, shown: str, awaited: bool) -> None:
    assert shown.replace("TASK_STATUS_IGNORED", "...") == re.sub(
        r"task_status=.*?\)", "task_status=...)", signature(getattr(cog_trio, name))
    )


@pytest.mark.parametrize(
    ("owner", "name", "shown", "awaited"),
    [
        *((cog_trio.PredictionService, *call) for call in calls("`PredictionService`")),
        *((Prediction, *call) for call in calls("`Prediction`") if call[0] not in ("cancel", "snapshot")),
    ],
)
def test_methods_are_as_they_are_shown(owner: type, name: str, shown: str, awaited: bool) -> None:
    method = getattr(owner, name)
    assert shown == signature(method)
    assert awaited is inspect.iscoroutinefunction(method)
    assert (method.__doc__ or "").strip()


def test_what_routes_ask_of_the_service_and_no_more_is_left_out() -> None:
    """Each public method is on the page, but those that face the transports and the command line (``required``,
    ``validate_input``, ``attach_log``, ``in_flight``)."""
    public = {name for name, _ in inspect.getmembers(cog_trio.PredictionService, inspect.isfunction) if name[0] != "_"}
    shown = {name for name, _, _ in calls("`PredictionService`")}
    others = {"admit", "create", "watch", "follow", "creator_left", "join", "required", "absence"}
    others |= {"predictions", "dump_workers", "renew_secrets", "on_renewal"}
    assert public - shown == others | {"check_input", "validate_input", "attach_log", "in_flight"}
    assert shown <= public


async def test_attributes_of_a_prediction_are_there() -> None:
    prediction = Prediction("a", NewPrediction(mode=Mode.PREDICT))
    shown = [name for row in table("`Prediction`") for name in names(row[0]) if "(" not in row[0]]
    assert len(shown) > 10
    for name in shown:
        assert hasattr(prediction, name), name


@pytest.mark.parametrize("heading", ["Events of a prediction", "Events of a service"])
def test_records_have_the_fields_that_are_shown(heading: str) -> None:
    rows = table(heading)[1:]
    assert rows
    for row in rows:
        (name,) = names(row[0])
        fields = [field for field in getattr(cog_trio, name).__match_args__ if field != "at"]
        assert names(row[1]) == fields, name


def test_statistics_have_the_fields_that_are_shown() -> None:
    shown = [name for row in table("`Statistics`")[1:] for name in names(row[0])]
    assert sorted(shown) == sorted(field.name for field in dataclasses.fields(cog_trio.Statistics))


def test_errors_have_the_bases_that_are_shown() -> None:
    rows = [(*names(row[0]), *names(row[1])) for row in table("Errors")[1:]]
    for name, base in rows:
        assert getattr(cog_trio, name).__base__.__name__ == base
    errors = {
        name
        for name in cog_trio.__all__
        if isinstance(value := getattr(cog_trio, name), type) and issubclass(value, Exception)
    }
    assert {name for name, _ in rows} | {"Rejected", "PredictionError"} == errors


def test_arguments_of_open_service_are_all_explained() -> None:
    shown = [names(row[0])[0] for row in table("Functions") if re.fullmatch(r"`\w+`", row[0])]
    assert shown == list(inspect.signature(cog_trio.open_service).parameters)
