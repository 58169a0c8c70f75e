"""Tracing that was asked for and that is not read: one warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.config.cog_yaml import load_config
from cog_trio.config.settings import read_settings

ON = {"COG_TRACE_CONFIGURED": "true"}


@pytest.mark.parametrize("environ", [ON, {**ON, "COG_TRACE_ENABLED": "1"}, {"COG_TRACE_CONFIGURED": "Yes"}])
def test_variables_that_turn_tracing_on_are_one_warning(environ: dict[str, str]) -> None:
    (warning,) = read_settings({}, environ)[1]
    assert warning.startswith(f"COG_TRACE_CONFIGURED={environ['COG_TRACE_CONFIGURED']} asks for tracing")


@pytest.mark.parametrize(
    "environ",
    [
        {"COG_TRACE_CONFIGURED": "false"},
        {**ON, "COG_TRACE_ENABLED": "false"},
        {**ON, "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector"},
    ],
)
def test_where_tracing_is_off_nothing_is_said(environ: dict[str, str]) -> None:
    assert read_settings({}, environ)[1] == []


def test_the_section_of_cog_yaml_is_one_warning(tmp_path: Path) -> None:
    file = tmp_path / "cog.yaml"
    file.write_text("run: run.py\nobservability:\n  traces:\n    enabled: true\n")
    (warning,) = load_config(file).warnings
    assert warning.startswith(f"{file}:3: observability asks for tracing")
    file.write_text("run: run.py\nobservability:\n")
    assert load_config(file).warnings == ()
