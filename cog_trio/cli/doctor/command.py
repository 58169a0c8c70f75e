"""``cog-trio doctor``: looks a model over and says what is wrong, what is old, and what may be missing.

What can be read is read in this process (cog.yaml, the source, the requirements); whether the model loads is found out
by a worker, so user code never runs here. Problems make the exit code 1; old names and hints don't, old models run.
With ``--fix`` what is mechanical is mended first, file by file, and shown as a difference.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cog_trio.cli import options
from cog_trio.cli.launch_plan import LaunchPlan, make_plan
from cog_trio.config.cog_yaml import FILE, BadModel, ModelTarget, find_model

if TYPE_CHECKING:
    from cog_trio.cli.doctor.findings import Finding

UNWELL: Final = 1  # exit code
TRACEBACK: Final = "Traceback (most recent call last):\n"
FRAME: Final = re.compile(r'^  File "([^"\n]+)", line (\d+)', re.MULTILINE)
SIGNATURE_FAULTS: Final = ("TypeError: ", "ValueError: ")  # without a traceback: of what reads signatures
REST: Final = {"deprecated": "{} deprecated (may stay)", "hint": "{} to look at"}


@click.command()
@click.argument("model", default=".")
@click.option("--fix", is_flag=True, help="replace old names where nothing is unclear, and show the difference")
@click.option("--setup", is_flag=True, help="run setup() as well, which may load weights")
@options.config_file
def command(model: str, fix: bool, setup: bool, config_file: str | None) -> int:
    """Check MODEL: does it load, and what should be changed?

    MODEL is named as for serve. Exit code 1 if it can't be served as it is; old names and hints are not problems.
    """
    from cog_trio.cli.dockerfile.missing_package import missing_package_advice
    from cog_trio.cli.doctor.findings import PROBLEM

    try:
        target = find_model(model, config_file=config_file)
    except BadModel as error:
        if not Path(model.rpartition(":")[0] or model).exists():
            raise click.ClickException(str(error)) from error
        print(f"{error}")
        return _verdict(model, [PROBLEM])
    yaml = target.folder / (FILE if config_file is None else Path(config_file).name)
    found = list(_read(target, yaml))
    if fix and any(finding.edits for finding in found):
        _fix(found)
        target = find_model(model, config_file=config_file)
        found = list(_read(target, yaml))
    for finding in found:
        print(finding)
    kinds: list[str] = [finding.kind for finding in found]
    if PROBLEM not in kinds:
        plan = make_plan(model, {}, terminal=False, config_file=config_file)
        causes, place = _examine(replace(plan, warnings=()), target, setup)
        one = target.predict if target.train is None else target.train if target.predict is None else None
        for cause in causes:
            advice = missing_package_advice(cause, target.folder, yaml.name)
            said = " ".join(cause.split()) + (f"; {advice}" if advice else "")
            print(f"{place or one or model}: {PROBLEM}: {said}")
            kinds.append(PROBLEM)
    return _verdict(model, kinds, setup)


def _examine(plan: LaunchPlan, target: ModelTarget, setup: bool) -> tuple[list[str], str | None]:
    """All reasons why the model does not load, or with ``setup`` can't be set up, and the place in its code.

    If there are any, or if it was set up, what it printed goes to stderr; the traceback of an import only where its
    place could not be told. A signal ends us at once, and our guardian the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with plan.spawn() as process:
        from cog_trio.cli.schema.describe_model import load_model_schema

        loaded = load_model_schema(plan, process, setup=setup)
    printed, place = loaded.printed, None
    if loaded.faults:
        sys.stderr.write(printed.removesuffix("\n".join([*loaded.faults, ""])))
        return [fault.removesuffix(";") for fault in loaded.faults], _signature(target)
    if loaded.cause is not None:
        before, found, trace = printed.rpartition(TRACEBACK)
        if found:
            place = _place(trace, plan.folder)
        elif loaded.cause.startswith(SIGNATURE_FAULTS):
            place = _signature(target)
        printed = before if place and not setup else printed  # setup fails deep in libraries: it stays
    if setup or loaded.cause is not None:
        sys.stderr.write(printed)
    return [] if loaded.cause is None else [loaded.cause], place


def _place(trace: str, folder: str) -> str | None:
    """The last line of the model's own code in a traceback, as ``file:line``."""
    places = [
        f"{os.path.relpath(file, folder)}:{line}"
        for file, line in FRAME.findall(trace)
        if "site-packages" not in file and os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder), ""))
    ]
    return places[-1] if places else None


def _signature(target: ModelTarget) -> str | None:
    """The line of the function whose signature the model has, as ``file:line``; None where two may be meant."""
    from cog_trio.cli.doctor.deprecated_names import Subject, model_method
    from cog_trio.cli.doctor.python_source import PythonSource

    if target.predict is None or target.train is not None:
        return None
    file, _, name = target.predict.partition(":")
    source = PythonSource(target.folder / file, file)
    method = model_method(Subject(source, name or None, imported_elsewhere=False))
    return None if method is None else source.where(method)


def _read(target: ModelTarget, yaml: Path) -> Iterator[Finding]:
    """All that is found without running anything."""
    from cog_trio.cli.dockerfile.build_section import read_build
    from cog_trio.cli.doctor.deprecated_names import Subject, deprecated, imported_elsewhere, older_key
    from cog_trio.cli.doctor.findings import PROBLEM, Finding
    from cog_trio.cli.doctor.missing_requirements import missing_requirements
    from cog_trio.cli.doctor.python_source import PythonSource
    from cog_trio.config.yaml_source import BadFile

    build = None
    if yaml.is_file():
        yield from older_key(yaml)
        try:
            build = read_build(target.folder, config_file=yaml.name)
            for line in build.unknown:
                where, _, text = line.partition(": ")
                yield Finding("hint", where, text)
        except (BadModel, BadFile) as error:  # serving does not need the build section: no problem of this machine
            yield Finding("hint", str(yaml), f"no image can be built: {error}")
    for reference, train in ((target.predict, False), (target.train, True)):
        if reference is None:
            continue
        file, _, name = reference.partition(":")
        path = target.folder / file
        try:
            source = PythonSource(path, file)
        except SyntaxError as error:
            yield Finding(PROBLEM, f"{file}:{error.lineno or 1}", f"SyntaxError: {error.msg}")
            continue
        except (OSError, ValueError) as error:
            yield Finding(PROBLEM, file, str(error))
            continue
        yield from deprecated(Subject(source, name or None, imported_elsewhere(target.folder, path), train))
        if build is not None and not train:
            yield from missing_requirements(source, target.folder, build.names)


def _fix(found: list[Finding]) -> None:
    """Make all edits, file by file.

    Raises:
      click.ClickException: a file can't be written.
    """
    from cog_trio.cli.doctor.findings import mend

    edits = {edit for finding in found for edit in finding.edits}
    for path in sorted({edit.path for edit in edits}):
        try:
            sys.stdout.write(mend(path, (edit for edit in edits if edit.path == path)))
        except OSError as error:
            raise click.ClickException(f"can't write {path}: {error.strerror}") from error


def _verdict(model: str, kinds: list[str], setup: bool = False) -> int:
    """Say how it stands; the exit code."""
    problems = kinds.count("problem")
    state = (
        f"{problems} to mend" if problems else "loads and is set up" if setup else "loads (--setup runs setup() too)"
    )
    said = [state, *(words.format(kinds.count(kind)) for kind, words in REST.items() if kind in kinds)]
    print(f"{options.NAME}: {model}: {'; '.join(said)}", file=sys.stderr)
    return UNWELL if problems else 0
