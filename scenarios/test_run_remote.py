"""``cog-trio run --url``: the same command line, and the model is on another server."""

from __future__ import annotations

import signal
from pathlib import Path

import trio
import trustme

from cog_trio.testing import ServeModel
from scenarios.commands import open_command, run_command
from scenarios.places import EXAMPLES

TOKEN = "s3cr3t-t0k3n"


async def test_D44_runs_refusals_cancels_and_a_server_that_dies(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a server, when runs come by HTTP and WebSocket, then each shows what a run here would show; a wrong input
    is told by its name; Ctrl-C cancels on the server; and when the server dies, each says so in one line."""
    with trio.fail_after(120):
        async with serve_model("talks.py", "--log-format", "json") as server:
            addresses = {"http": server.url, "ws": server.url.replace("http", "ws", 1)}
            for name, url in addresses.items():
                here = tmp_path / name
                code, out, err = await run_command(
                    "run", "--url", url, "-i", "words=a", "-i", "words=b", temporary=here
                )
                assert (code, out, err) == (0, "ab", "talking\n")

                arguments = ("run", "--url", url, "-i", f"gate={tmp_path}/none")
                async with open_command(*arguments, temporary=here) as command:
                    await command.until("one")
                    command.interrupt()
                    assert await command.end() == 130
                assert command.err.decode().splitlines() == [
                    "talking",
                    "cleaning up",
                    "cog-trio: the prediction was canceled",
                ]
                await server.until("READY")
            code, out, err = await run_command("run", "--url", server.url, "-i", "times=0", temporary=tmp_path / "t")
            assert (code, out) == (2, "")
            assert err == "cog-trio: input times: 0 is less than the minimum of 1\n"

            url = addresses["ws"]
            async with open_command(
                "run", "--url", url, "-i", f"gate={tmp_path}/none", temporary=tmp_path / "t"
            ) as run:
                await run.until("one")
                server.expected = None
                server.process.send_signal(signal.SIGKILL)
                assert await run.end() == 1
            told = run.err.decode().splitlines()[-1]
            assert told.startswith(f"cog-trio: {url} went away: ")
        for url in addresses.values():
            code, out, err = await run_command("run", "--url", url, temporary=tmp_path / "t")
            assert (code, out, err.count("\n")) == (1, "", 1)
            assert f"{url} can't be reached: " in err
            assert err.endswith("Connection refused\n")


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

            async def run(scheme: str, *more: str, env: dict[str, str]) -> tuple[int, str, str]:
                url = server.url.replace("https", scheme)
                arguments = ("run", "--url", url, "-i", "tokens=2", *more)
                return await run_command(*arguments, temporary=tmp_path / "t", env=env)

            for scheme in ("https", "wss"):
                assert await run(scheme, *cafile, env=with_token) == (0, ", and", "")
            for code, out, err in (await run("https", *cafile, env={}), await run("wss", env=with_token)):
                assert (code, out, err.count("\n")) == (1, "", 1)
                assert "--auth-token or COG_TRIO_AUTH_TOKEN" in err or "certificate" in err
            code, out, err = await run("https", "--cafile", str(tmp_path / "key.pem"), env=with_token)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "--cafile" in err
