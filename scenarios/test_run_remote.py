"""``cog-trio run --url``: the same command line, and the model is on another server."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import trio
import trustme

from cog_trio.testing import ServeModel
from scenarios.breaking_proxy import BreakingProxy
from scenarios.commands import open_command, run_command
from scenarios.places import EXAMPLES

TOKEN = "s3cr3t-t0k3n"


@pytest.mark.covers("D44")
async def test_D44_runs_cancels_and_a_server_that_dies(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a server, when runs come by HTTP and WebSocket, then each shows what a run here would show; Ctrl-C cancels
    on the server; when the server dies, or is not there, one line says so."""
    with trio.fail_after(120):
        async with serve_model("talks.py", "--log-format", "json") as server:
            socket = server.url.replace("http", "ws", 1)
            words = ("-i", "words=a", "-i", "words=b")
            assert await run_command("run", "--url", server.url, *words, temporary=tmp_path / "t") == (
                0,
                "ab",
                "talking\n",
            )
            for url in (server.url, socket):
                arguments = ("run", "--url", url, "-i", f"gate={tmp_path}/none")
                async with open_command(*arguments, temporary=tmp_path / "t") as command:
                    await command.until("one")
                    command.interrupt()
                    assert await command.end() == 130
                assert command.err.decode().splitlines() == [
                    "talking",
                    "cleaning up",
                    "cog-trio: the prediction was canceled",
                ]
                await server.until("READY")
            async with open_command(*arguments, temporary=tmp_path / "t") as command:
                await command.until("one")
                server.expected = None
                server.process.send_signal(signal.SIGKILL)
                assert await command.end() == 1
            assert command.err.decode().splitlines()[-1].startswith(f"cog-trio: {socket} went away: ")
        code, out, err = await run_command("run", "--url", server.url, temporary=tmp_path / "t")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{server.url} can't be reached: " in err
        assert err.endswith("Connection refused\n")


@pytest.mark.covers("D40", "D44")
async def test_D40_D44_token_and_certificate(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a server with TLS and a token, when a run brings both, then it runs; without either, one line says why."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(certificate.private_key_pem.bytes())
    flags = ("--certfile", str(tmp_path / "cert.pem"), "--keyfile", str(tmp_path / "key.pem"))
    cafile = ("--cafile", str(tmp_path / "ca.pem"))
    with_token = {"COG_TRIO_AUTH_TOKEN": TOKEN}
    with trio.fail_after(120):
        async with serve_model(EXAMPLES / "text", *flags, env=with_token, status=None) as server:
            done: dict[str, tuple[int, str, str]] = {}

            async def run(name: str, scheme: str, *more: str, **env: str) -> None:
                url = server.url.replace("https", scheme)
                arguments = ("run", "--url", url, "-i", "tokens=2", *more)
                done[name] = await run_command(*arguments, temporary=tmp_path / name, env=env)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: run("events", "https", *cafile, **with_token))
                nursery.start_soon(lambda: run("socket", "wss", *cafile, **with_token))
                nursery.start_soon(lambda: run("no_token", "https", *cafile))
                nursery.start_soon(lambda: run("no_trust", "wss", **with_token))
    assert done["events"] == done["socket"] == (0, ", and", "")
    for name, why in (("no_token", "--auth-token or COG_TRIO_AUTH_TOKEN"), ("no_trust", "certificate")):
        code, out, err = done[name]
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert why in err


async def test_a_broken_stream_is_resumed(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a server that waits for clients to come back, when the connection of a stream breaks, then the run goes on
    behind the last event; when the server does not wait, one line says why the run was cancelled."""
    with trio.fail_after(60):
        for grace, count, code in (("30", 20, 0), ("0", 10_000, 1)):
            async with serve_model("tokens.py", "--stream-grace", grace) as server, trio.open_nursery() as nursery:
                proxy = BreakingProxy(int(server.url.rpartition(":")[2]), b"event: output")
                port = await nursery.start(proxy.serve)
                arguments = ("run", "--url", f"http://127.0.0.1:{port}", "-i", f"count={count}", "-i", "delay=0.05")
                async with open_command(*arguments, temporary=tmp_path / "t") as command:
                    assert await command.end() == code, command.err
                assert proxy.broken == 1
                nursery.cancel_scope.cancel()
            said = command.err.decode().splitlines()
            (resuming,) = [line for line in said if "resuming it" in line]
            if code:
                assert "cancelled the run when its stream broke" in said[-1]
            else:
                assert said == ["run 1", resuming, "done"]
                assert [line.partition(":")[0] for line in command.out.decode().split()] == [*map(str, range(count))]


async def test_a_server_that_is_setting_up_is_waited_for(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a server whose setup goes on, when a run is to go there, then a line says so, and it runs once setup is
    over."""
    gate = tmp_path / "gate"
    with trio.fail_after(60):
        async with serve_model("talks.py", env={"TALKS_GATE": str(gate)}, status=None) as server:
            async with open_command("run", "--url", server.url, temporary=tmp_path / "t") as command:
                await command.until("is setting up its model: waiting for it", err=True)
                gate.touch()
                assert await command.end() == 0
            assert command.out == b"one two"
            assert command.err.decode().splitlines()[1:] == ["talking"]


async def test_a_large_file_goes_up_without_being_in_memory(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a large local file, when a run sends it to another server, then the server gets it whole, and the command
    has not grown with it."""
    (tmp_path / "model.py").write_text(
        "from cog import Path\ndef run(file: Path) -> int:\n    return file.stat().st_size\n"
    )
    peaks = []
    with trio.fail_after(60):
        async with serve_model(f"{tmp_path}/model.py:run", "--body-limit", "200MiB") as server:
            for size in (1000, 64 * 2**20):
                (tmp_path / "data.bin").write_bytes(b"x" * size)
                code = (
                    "import sys; from cog_trio.cli import options, commands\n"
                    f"sys.argv[1:] = ['run', '--url', {server.url!r}, '-i', 'file=@{tmp_path}/data.bin']\n"
                    "code = options.run_command(commands, 'cog-trio')\n"
                    "status = open('/proc/self/status').read().partition('VmHWM:')[2]\n"
                    "print(status.split()[0], file=sys.stderr); sys.exit(code)"
                )
                done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True, capture_stderr=True)
                assert done.stdout == b"%d\n" % size
                peaks.append(int(done.stderr.split()[-1]))
    assert peaks[1] - peaks[0] < 16 * 2**10, "KiB"
