"""A server that strangers can reach: token, TLS, probes, and an end that loses nothing."""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
from pathlib import Path

import httpx
import pytest
import trio
import trustme
from trio_websocket import open_websocket_url

from cog_trio.cli.dockerfile.render import PROBE
from cog_trio.testing import ServeModel, Server
from cog_trio.testing.server_process import SOON

TOKEN = "s3cr3t-t0k3n"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.mark.covers("D40")
async def test_D40_token_and_TLS_from_the_first_request_to_the_last(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a certificate and a token, when strangers and friends come by HTTP/1.1 and WebSocket, then probes are open
    to all, that of a container too, and the rest to friends; the model never sees the token, nor does the log; and a
    stop in the middle of a request loses nothing."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(certificate.private_key_pem.bytes())
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    flags = ("--certfile", str(tmp_path / "cert.pem"), "--ssl-keyfile", str(tmp_path / "key.pem"))
    with trio.fail_after(60):
        async with serve_model("environment.py", *flags, env={"COG_TRIO_AUTH_TOKEN": TOKEN}, status=None) as server:
            assert server.url.startswith("https://127.0.0.1:")
            async with httpx.AsyncClient(base_url=server.url, verify=trusting, trust_env=False, timeout=30) as client:
                with trio.fail_after(SOON):
                    while (await client.get("/readyz")).status_code != 200:
                        await trio.sleep(0.02)
                assert (await client.get("/livez")).status_code == 200
                refused = await client.post("/predictions", json={})
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                seen = (await client.post("/predictions", json={}, headers=BEARER)).json()
                assert seen["status"] == "succeeded"
                assert "PATH=" in seen["output"]
                assert TOKEN not in json.dumps(seen)

                address = server.url.replace("https", "wss") + "/predictions/ws"
                async with open_websocket_url(
                    address, ssl_context=trusting, subprotocols=["cog-trio", f"bearer.{TOKEN}"]
                ) as socket:
                    assert socket.subprotocol == "cog-trio"
                    await socket.send_message("{}")
                    while (event := json.loads(await socket.get_message()))["event"] != "completed":
                        pass
                    assert event["data"]["status"] == "succeeded"

                variables = {"PORT": server.url.rpartition(":")[2], "COG_TRIO_CERTFILE": "any"}
                await trio.run_process([sys.executable, "-c", PROBE], env={**os.environ, **variables})

                async def last() -> None:
                    reply = await client.put(
                        "/predictions/last", json={"input": {"seconds": 0.5}}, headers=BEARER, timeout=30
                    )
                    assert reply.json()["status"] == "succeeded"

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(last)
                    with trio.fail_after(SOON):
                        while "begun" not in (await client.get("/predictions/last", headers=BEARER)).text:
                            await trio.sleep(0.02)
                    server.process.send_signal(signal.SIGTERM)
                    with trio.fail_after(SOON):
                        while (ready := await client.get("/readyz")).status_code == 200:
                            await trio.sleep(0.02)
                    assert ready.json() == {"status": "BUSY", "draining": True}
            assert await server.ended() == 0
            assert TOKEN not in json.dumps(server.log)


async def test_secrets_are_renewed_while_the_server_runs(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a token in a file and a certificate, when both are replaced and SIGHUP comes, then new connections meet the
    new ones and open ones live on; files that can't be used are told, and change nothing."""
    old, new = trustme.CA(), trustme.CA()
    token, cert, key = (tmp_path / name for name in ("token", "cert.pem", "key.pem"))

    def write(authority: trustme.CA, word: str) -> None:
        issued = authority.issue_cert("127.0.0.1")
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        token.write_text(f"{word}\n")

    async def status(authority: trustme.CA, word: str) -> int:
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        async with httpx.AsyncClient(base_url=server.url, verify=trusting, trust_env=False, timeout=30) as client:
            return (await client.get("/", headers={"authorization": f"Bearer {word}"})).status_code

    write(old, "one")
    flags = ("--auth-token-file", str(token), "--certfile", str(cert), "--keyfile", str(key))
    with trio.fail_after(60):
        async with serve_model("environment.py", *flags) as server:
            assert (await status(old, "one"), await status(old, "two")) == (200, 401)
            opened = await server.client.get("/livez")  # a connection that stays
            write(new, "two")
            server.process.send_signal(signal.SIGHUP)
            await _until_said(server, "secrets were read again")
            assert (await status(new, "two"), await status(new, "one")) == (200, 401)
            with pytest.raises(httpx.ConnectError):
                await status(old, "two")
            assert (await server.client.get("/livez")).status_code == opened.status_code == 200
            token.write_text("no token: it has a space\n")
            server.process.send_signal(signal.SIGHUP)
            await _until_said(server, "--auth-token-file: what ")
            assert await status(new, "two") == 200
            token.write_text("two\n")
            key.write_bytes(old.issue_cert("127.0.0.1").private_key_pem.bytes())
            server.process.send_signal(signal.SIGHUP)
            await _until_said(server, "is not the key of the certificate")
            assert await status(new, "two") == 200
            assert "space" not in json.dumps(server.log)


async def _until_said(server: Server, words: str) -> None:
    while not any(words in str(entry.get("message")) for entry in server.log):
        await trio.sleep(0.02)
