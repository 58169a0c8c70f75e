"""A prediction or training that runs here: a service of its own, without HTTP, for one run.

Setup's text and what the model prints go to stderr as they come. Output files come as files, not as data URLs: the
service puts them into a folder of ours, from where they are moved to their places. Ctrl-C cancels the run and shows
what its clean-up prints; a second one kills the worker. Leaving the service ends and reaps the worker on every way.

This module imports the rest of the package, so it is imported only after the worker was spawned.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

import cog_trio
from cog_trio.bridge.json_value import decode_json
from cog_trio.cli.dockerfile.missing_package import missing_package_advice
from cog_trio.cli.options import NAME
from cog_trio.cli.run.display import FAILED, Display, display_style, fault_line, refuse
from cog_trio.cli.run.input_parser import BadInputs, InputParser
from cog_trio.cli.run.input_table import input_lines, input_rows
from cog_trio.cli.run.output_writer import BadOutput, OutputForm
from cog_trio.cli.run.session import StopRequest, encode, run_session
from cog_trio.files.workspace import open_workspace
from cog_trio.state.event_log import Boundary, Event, LogEvent, Subscription
from cog_trio.state.new_prediction import NewPrediction

if TYPE_CHECKING:
    from cog_trio.cli.launch_plan import LaunchPlan
    from cog_trio.cli.run.console import Console
    from cog_trio.cli.run.run_request import RunOptions
    from cog_trio.orchestrator.spawn import WorkerProcess

OURS: Final[Mapping[str, Any]] = {  # whatever variables say to servers: one worker, for one run
    "workers": 1,
    "respawn": False,
    "queue": 0,
    "ready_file": None,
    "stream_history": 1024,
}
LONG: Final = 400  # characters of a line that is not said twice
ERROR_LINE: Final = re.compile(r"\w+(?:Error|Exception): ")  # of an exception, as Python shows it
STARTING: Final = "STARTING"
READY: Final = ("READY", "BUSY", "UNHEALTHY")


def run_here(plan: LaunchPlan, process: WorkerProcess, early: Sequence[int], run_options: RunOptions) -> int:
    """Run it to its end; the exit code."""

    async def body(console: Console, stop: StopRequest) -> int:
        with _logging(console, stop, run_options.debug):
            for warning in plan.warnings:
                console.say(f"{NAME}: warning: {warning}")
            async with open_workspace() as workspace:
                staging = workspace.run_folder()
                os.mkdir(staging, 0o700)
                return await _LocalRun(plan, process, run_options, console, stop, staging).run()

    return trio.run(run_session, early, run_options.colour, run_options.debug, body)


class _LocalRun:
    def __init__(
        self,
        plan: LaunchPlan,
        process: WorkerProcess,
        run_options: RunOptions,
        console: Console,
        stop: StopRequest,
        staging: str,
    ) -> None:
        self._plan = plan
        self._process = process
        self._run_options = run_options
        self._console = console
        self._stop = stop
        self._staging = staging

    async def run(self) -> int:
        plan, stop = self._plan, self._stop
        stop.hard = self._kill
        self._console.phase(f"Setting up {plan.predict or plan.train}")
        async with cog_trio.open_service(
            plan.predict,
            settings=replace(plan.settings, **OURS),
            worker=self._process,
            train=plan.train,
            cwd=plan.folder,
            environment=plan.environment,
            output_folder=self._staging,
        ) as service:
            await _described(service)
            if service.schema is None:  # the log has said why
                if advice := missing_package_advice(service.health().cause or "", plan.folder, plan.config_file):
                    self._console.say(f"{NAME}: {advice}")
                return FAILED
            return await self._predict(service, json.loads(service.schema))

    def _kill(self) -> None:
        self._process.kill()
        self._stop.scope.cancel()

    async def _predict(self, service: cog_trio.PredictionService, document: dict[str, object]) -> int:
        run_options, console = self._run_options, self._console
        mode = cog_trio.Mode(run_options.mode)
        input, faults = await trio.to_thread.run_sync(
            _input, InputParser.of(document, run_options.mode), run_options, abandon_on_cancel=True
        )
        try:
            service.validate_input(input, mode)
        except cog_trio.InvalidInput as invalid:
            for fault in invalid.faults:
                name = _input_name(fault["loc"])
                faults.setdefault(name, fault_line(fault["loc"], fault["msg"]))
        except cog_trio.MalformedInput as malformed:
            faults[""] = str(malformed)
        if faults:  # told at once: setup goes on beside, and nobody waits for it
            code = refuse(console, tuple(faults.values()))
            if not (run_options.pairs or run_options.given):
                console.say("\n".join(input_lines(input_rows(document, run_options.mode, service.required(mode)))))
            return code
        try:
            health = await service.wait_started()
            if health.status not in READY:
                if advice := missing_package_advice(health.cause or "", self._plan.folder, self._plan.config_file):
                    console.say(f"{NAME}: {advice}")
                return FAILED
            prediction = service.create(NewPrediction(input, mode=mode, streamed=True))
        except cog_trio.Rejected as refusal:
            console.say(f"{NAME}: {refusal}")
            return FAILED
        display = Display(
            console,
            display_style(run_options),
            OutputForm(document, run_options.mode),
            Path(self._staging).as_uri() + "/",
        )
        prediction.event_log.patience = math.inf  # the model waits for our reader, however long it stalls
        self._stop.gently = prediction.cancel
        console.measure = partial(_fetched, prediction)
        try:
            with service.follow(prediction) as subscription:
                await self._follow(prediction, subscription, display)
        except BadOutput as error:
            display.broken(error)
            prediction.cancel()
            await prediction.wait_finished()
            return FAILED
        return await display.finish(_ended(prediction, display))

    async def _follow(self, prediction: cog_trio.Prediction, subscription: Subscription, display: Display) -> None:
        while not subscription.over:
            await subscription.wait()
            batch = subscription.read()
            if batch.lost:
                self._console.dropped += batch.lost
            for items, several in groupby(batch.events, _is_item):
                if items and display.wants_items:
                    indices = [index for index in several if isinstance(index, int)]
                    await display.items(indices[0], [_decoded(prediction, index) for index in indices])
                    if display.has_shown(indices[-1] + 1) and not prediction.terminal:
                        prediction.forget_outputs(indices[0], indices[-1] + 1)
                    continue
                for event in several:
                    if isinstance(event, LogEvent):
                        display.log(event.data)
                    elif event is Boundary.START:
                        self._console.phase("Running")
            await self._console.room()


def _input(inputs: InputParser, run_options: RunOptions) -> tuple[bytes, dict[str, str]]:
    """The input as JSON, without what can't be made, and the faults of that by their names."""
    try:
        return encode(inputs.build(run_options.pairs, run_options.given, run_options.read)), {}
    except BadInputs as bad:
        return encode(bad.values), dict(bad.by_name)


def _input_name(place: Sequence[str]) -> str:
    """The input that a fault of a request's body is of."""
    return str(place[2]).partition("/")[0] if len(place) > 2 else ""


async def _described(service: cog_trio.PredictionService) -> None:
    """Wait until the model has been imported and inputs can be checked, or it is clear that it won't be."""
    changed = trio.Event()

    def hear(event: cog_trio.ServiceEvent) -> None:
        if isinstance(event, (cog_trio.WorkerDescribed, cog_trio.HealthChanged)):
            changed.set()

    forget = service.observe(hear)
    try:
        while not service.described and service.health().status == STARTING:
            await changed.wait()
            changed = trio.Event()
    finally:
        forget()


def _ended(prediction: cog_trio.Prediction, display: Display) -> Mapping[str, object]:
    """The prediction at its end; without its output where that was shown, since it may be large."""
    if display.has_shown(prediction.next_index):
        return {"status": prediction.status.value, "error": prediction.error}
    whole: dict[str, object] = json.loads(prediction.snapshot())
    return whole


def _is_item(event: Event) -> bool:
    return isinstance(event, int)


def _fetched(prediction: cog_trio.Prediction) -> tuple[int, int | None] | None:
    """While inputs are on their way: how many bytes have come, and of how many."""
    fetched = prediction.fetched
    return None if fetched is None or fetched[0] == fetched[1] else fetched


def _decoded(prediction: cog_trio.Prediction, index: int) -> Any:
    output = prediction.outputs[index]
    assert output is not None  # its event has come
    return decode_json(output)


class _ToConsole(logging.Handler):
    """Text of the model that belongs to no run, as it is; of the runtime what somebody should know."""

    def __init__(self, console: Console, stop: StopRequest, debug: bool) -> None:
        super().__init__()
        self._console = console
        self._stop = stop
        self._debug = debug
        self._last = ""
        self._held = ""  # an error of a setup without a traceback: if it is the cause of a failure, it is told once

    def _say_held(self) -> None:
        if self._held:
            self._console.say(self._held)
        self._held = ""

    def close(self) -> None:
        self._say_held()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name == "cog_trio.user":
            self._say_held()
            if ERROR_LINE.match(text) and not self._last.startswith(" "):
                self._held = text
            else:
                self._console.say(text)
            self._last = text
            return
        if not text.endswith(self._held):
            self._say_held()
        self._held = ""
        if self._stop.code is not None and not self._debug:
            return  # what the end that was asked for looks like inside
        if record.levelno >= logging.ERROR:
            if len(self._last) > LONG and text.endswith(self._last):
                text = text.removesuffix(self._last) + "see above"
            self._console.say(f"{NAME}: {text}")
        elif self._debug or record.levelno >= logging.WARNING:
            self._console.say(f"{NAME}: {record.levelname.lower()}: {text}")
        if self._debug and record.exc_info:
            self._console.say(logging.Formatter().formatException(record.exc_info))


@contextmanager
def _logging(console: Console, stop: StopRequest, debug: bool) -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("cog_trio")
    handler = _ToConsole(console, stop, debug)
    root.addHandler(handler)
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
