"""Eight async predictions at once, round after round: what each of them writes and records lands on itself alone.

``COG_TRIO_ROUNDS`` sets the rounds: a few by default, 1,000 for the long form.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest
import trio

from cog_trio.testing import ServeModel, Server, WebhookReceiver

ROUNDS: Final = int(os.environ.get("COG_TRIO_ROUNDS", "10"))
SLOTS: Final = 8
PARTS: Final = 3
KINDS: Final = ("main", "task", "to_thread", "executor", "thread")


def check(name: str, state: dict[str, Any]) -> None:
    """Every line of this prediction, whole and in order, and nothing else."""
    wanted = [f"<{name}.{kind}.{part}>" for kind in KINDS for part in range(PARTS)]
    lines = state["logs"].splitlines()
    error, end = f"<{name}.error.0>", f"<{name}.end.0>"
    assert sorted(lines) == sorted([*wanted, error, end]), lines
    assert [line for line in lines if line not in (error, end)] == wanted
    assert (state["status"], state["output"]) == ("succeeded", name)
    metrics = {key: value for key, value in state["metrics"].items() if key != "predict_time"}
    assert metrics == {"name": name, "parts": len(wanted)}


async def ask(server: Server, receiver: WebhookReceiver, slot: int) -> None:
    for number in range(ROUNDS):
        name = f"s{slot}r{number}"
        fields = {"webhook": receiver.url, "webhook_events_filter": ["completed"]} if number % 10 == 0 else {}
        reply = await server.predict({"name": name, "parts": PARTS}, id=name, **fields)
        assert reply.status_code == 200, reply.text
        check(name, reply.json())
        if fields:
            (webhook,) = await receiver.until(name)
            assert webhook.content == reply.content
            receiver.came.remove(webhook)


@pytest.mark.timeout(120 + ROUNDS)
async def test_8_at_once_keep_their_lines_and_metrics(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given a model that writes half lines around awaits, in tasks and in threads, when eight of its predictions run at
    once again and again, then every line and metric is in the reply and the webhook of its own prediction."""
    with trio.fail_after(60 + ROUNDS):
        async with serve_model("crowd.py") as server, trio.open_nursery() as nursery:
            for slot in range(SLOTS):
                nursery.start_soon(ask, server, webhook_receiver, slot)
