"""A prediction or training that runs on another server, cog-trio's or Cog's own, over HTTP or a WebSocket.

The server's document says what the inputs are, so texts mean the same as for a model that is here. The run is tied to
us: it is created by a request that waits (or a socket), so it ends when we do, however we do; Ctrl-C asks the server
to cancel it and shows what its clean-up prints. What the server refuses, and what breaks on the way, is one line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import trio

from cog_trio.cli.options import NAME, PREDICT, USAGE
from cog_trio.cli.run.display import FAILED, Display, display_style, plain, refuse
from cog_trio.cli.run.http_run import HttpRun
from cog_trio.cli.run.input_parser import BadInputs, InputParser
from cog_trio.cli.run.output_writer import BadOutput, OutputForm
from cog_trio.cli.run.remote_server import RemoteServer, ServerGone, ServerRefused, understood
from cog_trio.cli.run.session import StopRequest, run_session
from cog_trio.cli.run.upload_body import UploadBody
from cog_trio.config.certificate import reason
from cog_trio.net.http_client import ClientUnusable, open_client, tls_context

if TYPE_CHECKING:
    from cog_trio.cli.run.console import Console
    from cog_trio.cli.run.run_request import RunOptions
    from cog_trio.config.settings import Settings

FAMILIES: Final = {"predict": "predictions", "train": "trainings"}


def run_there(settings: Settings, early: Sequence[int], run_options: RunOptions) -> int:
    """Run it to its end; the exit code."""

    async def body(console: Console, stop: StopRequest) -> int:
        try:
            return await _run(settings, run_options, console, stop)
        except ServerRefused as refused:
            if refused.faults:
                return refuse(console, refused.faults)
            text = str(refused)
        except (ServerGone, ClientUnusable) as error:
            text = str(error)
        if stop.code is None:
            console.phase("")
            console.say(f"{NAME}: {plain(text)}")
        return FAILED

    if settings.cafile is not None:
        try:
            tls_context(settings.cafile)
        except OSError as error:
            print(f"{NAME}: --cafile {settings.cafile} can't be used: {reason(error)}", file=sys.stderr)
            return USAGE
    return trio.run(run_session, early, run_options.colour, run_options.debug, body)


async def _run(settings: Settings, run_options: RunOptions, console: Console, stop: StopRequest) -> int:
    assert settings.url is not None
    console.phase(f"Connecting to {urlsplit(settings.url).netloc}")
    async with open_client(cafile=settings.cafile) as client:
        server = RemoteServer(settings.url, client, settings.auth_token, settings.cafile)
        host = urlsplit(settings.url).netloc

        def say_waiting() -> None:
            console.say(f"{NAME}: {plain(host)} is setting up its model: waiting for it")
            console.phase(f"Waiting for {host} to set up its model")

        await server.wait_set_up(say_waiting)
        document = await server.document()
        family = FAMILIES[run_options.mode]
        if f"/{family}" not in document["paths"]:
            raise ServerRefused(f"the server offers no {family}")
        console.phase("Reading the inputs")
        with understood("its openapi.json"):
            inputs, form = InputParser.of(document, run_options.mode), OutputForm(document, run_options.mode)
            streams = bool(document["paths"][f"/{family}"].get("post", {}).get("x-cog-streaming"))
        by_socket = server.socket and run_options.mode == PREDICT
        body = UploadBody(run_options.read)
        read = run_options.read if by_socket else body

        def build() -> dict[str, Any]:
            made = inputs.build(run_options.pairs, run_options.given, read)
            if not by_socket:
                body.set({"input": made})
            return made

        try:
            values = await trio.to_thread.run_sync(build, abandon_on_cancel=True)
        except BadInputs as bad:
            return refuse(console, bad.faults)
        display = Display(console, display_style(run_options), form)
        console.phase(f"Waiting for {urlsplit(settings.url).netloc}")
        console.measured = "Sending the inputs"
        try:
            if by_socket:
                from cog_trio.cli.run.websocket_run import converse

                prediction = await converse(server, values, display, console, stop)
            else:
                http_run = HttpRun(server, family, display, console, stop)
                prediction = await (http_run.stream(body) if streams else http_run.wait(body))
        except BadOutput as error:
            return display.broken(error)
        return await display.finish(prediction)
