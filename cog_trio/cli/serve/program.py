"""The program: one service, its HTTP server and the signals, in one nursery.

Everything ends in one way: ``service.shutdown()``, called here for SIGINT and SIGTERM and by the route for
``POST /shutdown``. The service then drains while HTTP still answers; when it has stopped, the server's scope is
cancelled and the process leaves with 0. A second signal ends the drain at once.

This module imports the rest of the package, so it is imported only after the worker was spawned.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import platform
import resource
import signal
import sys
from collections.abc import AsyncIterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

import cog_trio
from cog_trio._version import __version__
from cog_trio.cli.launch_plan import colours
from cog_trio.cli.log_output import LogHandler, open_log
from cog_trio.cli.options import fail
from cog_trio.cli.serve.prediction_log import log_predictions
from cog_trio.cli.serve.secret_watcher import SecretWatcher, secret_files
from cog_trio.cli.signals import ending_signals
from cog_trio.config.settings import changed_settings
from cog_trio.state.internal_errors import describe_error

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

if TYPE_CHECKING:
    from cog_trio.cli.launch_plan import LaunchPlan
    from cog_trio.orchestrator.spawn import WorkerProcess

log = logging.getLogger("cog_trio.cli")
MAX_DESCRIPTORS: Final = 2**20  # more than limit_connections can ask for
CANNOT_LISTEN: Final = 1  # exit code
M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h
LARGE_BLOCK: Final = 2**20  # bytes
BROKEN: Final = 70  # exit code, of sysexits.h: a fault of the program


def serve(plan: LaunchPlan, process: WorkerProcess, early: Sequence[int]) -> int:
    """Run the program to its end; the exit code. ``early`` holds the signals that came before."""
    _raise_descriptor_limit()
    return_large_blocks()
    settings = plan.settings
    colour = settings.log_format == "console" and sys.stderr.isatty() and colours()
    with open_log(
        settings.log_level, settings.log_format, colour=colour, predictions=settings.prediction_logs
    ) as handler:
        _say_start(plan)
        for warning in plan.warnings:
            log.warning("%s", warning)
        try:
            return trio.run(_program, plan, process, early, handler)
        except (Exception, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.split(Exception)[1] is not None:
                raise  # KeyboardInterrupt and the like are not a fault
            log.critical("the server has failed", exc_info=error.__cause__ or error)
            why = describe_error(error)
    return fail(plan.name, f"the server has failed: {why}", BROKEN)  # the last line, behind what waited in the log


def _say_start(plan: LaunchPlan) -> None:
    """The line at the start: what runs, with which model and settings."""
    if not log.isEnabledFor(logging.INFO):
        return
    versions = {"cog_trio": __version__, "python": platform.python_version(), "trio": trio.__version__}
    changed = changed_settings(plan.settings)
    model = plan.predict or plan.train
    slots = plan.settings.max_concurrency
    log.info(
        "cog-trio %s on Python %s serves %s%s, slots: %s%s",
        versions["cog_trio"],
        versions["python"],
        model,
        f" with {plan.settings.workers} workers" if plan.settings.workers > 1 else "",
        "as the model says" if slots is None else slots,
        "".join(f"; {flag}" if value is True else f"; {flag} {value}" for flag, value in changed.items()),
        extra={"versions": versions, "settings": changed},
    )


async def _program(plan: LaunchPlan, process: WorkerProcess, early: Sequence[int], handler: LogHandler) -> int:
    numbers = {*ending_signals(), *([signal.SIGHUP] if secret_files(plan.settings) else [])}
    with trio.open_signal_receiver(*numbers) as signals:
        async with (
            cog_trio.open_service(
                plan.predict,
                settings=plan.settings,
                worker=process,
                train=plan.train,
                cwd=plan.folder,
                environment=plan.environment,
            ) as service,
            trio.open_nursery() as nursery,
        ):
            prediction_log = log_predictions(service, handler)
            try:
                urls = await nursery.start(cog_trio.serve_http, service, plan.settings)
            except cog_trio.CannotListen as error:
                used = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
                hint = f"; {plan.port_option} takes another one" if used and plan.settings.uds is None else ""
                return fail(plan.name, f"{error}{hint}", CANNOT_LISTEN)
            log.info("Listening on %s", ", ".join(urls), extra={"urls": urls})
            nursery.start_soon(_after_setup, service, plan)
            nursery.start_soon(_watch_dumps, service)
            watcher = SecretWatcher(service, plan.settings) if secret_files(plan.settings) else None
            if watcher is not None:
                nursery.start_soon(watcher.run)
            nursery.start_soon(_watch_signals, service, signals, early, plan.settings.await_explicit_shutdown, watcher)
            if plan.settings.reload:
                from cog_trio.cli.serve.reload_watcher import watch

                nursery.start_soon(watch, service, plan)
            if plan.terminal:
                from cog_trio.cli.serve.welcome import print_welcome

                nursery.start_soon(print_welcome, service, urls, plan.predict or plan.train or "")
            await service.wait_stopped()
            nursery.cancel_scope.cancel()
    ended = "" if prediction_log is None else f", predictions: {prediction_log.ended}"
    log.info("Stopped%s, log lines dropped: %d", ended, handler.dropped)
    return 0


async def _watch_dumps(service: cog_trio.PredictionService) -> None:
    """Write what the server is doing to the log at each SIGUSR1."""
    from cog_trio.cli.serve.state_dump import dump_state

    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        async for _ in signals:
            dump_state(service)


async def _after_setup(service: cog_trio.PredictionService, plan: LaunchPlan) -> None:
    """Say what to do about a package that a setup has missed; and leave what is here for good to itself.

    The collector would go through the hundred thousand objects of our modules at each full pass: 0.1 s on the loop.
    """
    from cog_trio.cli.dockerfile.missing_package import missing_package_advice

    health = await service.wait_started()
    gc.freeze()
    if health.cause and (advice := missing_package_advice(health.cause, plan.folder, plan.config_file)):
        log.error("%s", advice)


async def _watch_signals(
    service: cog_trio.PredictionService,
    signals: AsyncIterable[int],
    early: Sequence[int],
    explicit: bool,
    watcher: SecretWatcher | None,
) -> None:
    for number in early:
        _obey(service, number, explicit, watcher)
    async for number in signals:
        _obey(service, number, explicit, watcher)


def _obey(
    service: cog_trio.PredictionService, number: int, explicit: bool, watcher: SecretWatcher | None = None
) -> None:
    name = signal.Signals(number).name
    if watcher is not None and number == signal.SIGHUP:
        watcher.look_again()
        return
    if explicit and number == signal.SIGTERM:
        log.info("%s is ignored: waiting for POST /shutdown", name)
        return
    log.info("%s: %s", name, _farewell(service))
    service.shutdown()


def _farewell(service: cog_trio.PredictionService) -> str:
    """What the end that was asked for waits for, and how long."""
    figures = service.statistics()
    count = figures.running + figures.queued
    predictions = "1 prediction" if count == 1 else f"{count} predictions"
    if service.draining:
        return f"waiting no longer, {predictions} cancelled" if count else "waiting no longer"
    if not count:
        return "shutting down, no prediction is running"
    grace = service.settings.drain_grace
    return f"shutting down: {predictions} may finish within {grace:g} s, a second signal cancels them"


def _raise_descriptor_limit() -> None:
    """Room for many connections; the worker was started with the old limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a second, lower limit: then what we have must do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def return_large_blocks() -> None:
    """Let the memory of a large body go back to the system as soon as it is freed.

    glibc keeps it otherwise: once a large block was freed, it takes the next ones from its heap, where any small block
    above them holds them for ever. A fixed threshold ends that. Other C libraries have no ``mallopt``.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
