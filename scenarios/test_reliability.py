"""What keeps a service going: limits, the queue, workers that come back, several workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import SOON
from scenarios.processes import children_of, worker_of


async def test_a_prediction_over_its_time_limit_is_stopped(serve_model: ServeModel) -> None:
    """Given --predict-timeout, when a model sleeps longer, then the prediction fails with the limit's text, its
    clean-up was heard, the slot is free, and the next one succeeds in the same worker."""
    with trio.fail_after(60):
        async with serve_model("stuck.py", "--predict-timeout", "1") as server:
            worker = worker_of(server).pid
            began = trio.current_time()
            reply = (await server.predict({"how": "sleep"})).json()
            assert 1 <= trio.current_time() - began < SOON
            assert (reply["status"], reply["error"]) == ("failed", "Prediction timed out after 1 s")
            assert "cleaned up" in reply["logs"]
            assert (await server.predict({"how": "none"})).json()["output"] == ["end"]
            assert worker_of(server).pid == worker


async def test_a_queue_serves_in_order_and_refuses_beyond_its_bound(serve_model: ServeModel) -> None:
    """Given one slot and --queue 2, when four predictions come while it is busy, then two wait and run in their order,
    the last is refused, health counts them, and one that is cancelled in the queue leaves it at once."""
    with trio.fail_after(60):
        async with serve_model("stuck.py", "--queue", "2") as server:
            await server.start("runs", {"how": "sleep", "seconds": 30})
            await server.until_logs("runs", "started")
            await server.start("first", {"how": "none"})
            await server.start("second", {"how": "none"})
            refused = await server.predict({"how": "none"})
            assert refused.status_code == 409
            assert ((await server.health())["status"], (await server.health())["queued"]) == ("BUSY", 2)
            assert (await server.look("second"))["status"] == "starting"
            assert await server.cancel("first") == 200
            assert (await server.finished("first"))["status"] == "canceled"
            await server.start("third", {"how": "none"})
            await server.cancel("runs")
            second, third = await server.finished("second"), await server.finished("third")
            assert (second["status"], third["status"]) == ("succeeded", "succeeded")
            assert second["started_at"] < third["started_at"]
            assert (await server.health())["queued"] == 0


async def test_who_leaves_the_queue_or_waits_too_long_does_not_run(serve_model: ServeModel) -> None:
    """Given one slot and a queue with a time, when a waiting client leaves, then its prediction is canceled without
    having begun; when another waits too long, it gets 409 with its own text."""
    with trio.fail_after(60):
        async with serve_model("stuck.py", "--queue", "2", "--queue-timeout", "1") as server:
            await server.start("runs", {"how": "sleep", "seconds": 30})
            await server.until_logs("runs", "started")
            with trio.move_on_after(0.3):
                await server.client.put("/predictions/left", json={"input": {"how": "none"}})
            left = await server.finished("left")
            assert (left["status"], left["logs"], "started_at" in left) == ("canceled", "", False)
            reply = await server.predict({"how": "none"})
            assert (reply.status_code, reply.json()["error"]) == (409, "No prediction slot became free within 1 s")
            await server.cancel("runs")


async def test_a_lost_worker_is_followed_by_another(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given --respawn and a model with an environment of its own, when its worker is killed while it runs, then the
    prediction fails with the cause, health is STARTING and then READY again, and the new worker serves in the same
    environment; nothing of the old one is left."""
    (tmp_path / "cog.yaml").write_text("run: predict.py:Runner\nenvironment: [GIVEN=yes]\n")
    (tmp_path / "predict.py").write_text(
        "import os, time\nfrom cog import BaseRunner\n\n"
        "class Runner(BaseRunner):\n    def run(self, seconds: float = 0.0) -> str:\n"
        "        time.sleep(seconds)\n        return f'{os.getpid()} {os.environ[\"GIVEN\"]} {os.getcwd()}'\n"
    )
    with trio.fail_after(60):
        async with serve_model(tmp_path, "--respawn") as server:
            first = (await server.predict()).json()["output"]
            assert first == f"{worker_of(server).pid} yes {tmp_path}"
            await server.start("lost", {"seconds": 30})
            await server.until("BUSY")
            os.kill(worker_of(server).pid, signal.SIGKILL)
            lost = await server.finished("lost")
            assert lost["status"] == "failed"
            assert "signal 9" in lost["error"]
            assert (await server.health())["status"] == "STARTING"
            assert (await server.predict()).status_code == 503
            health = await server.until("READY")
            assert (health["respawns"], health["setup"]["status"]) == (1, "succeeded")
            second = (await server.predict()).json()["output"]
            assert second == f"{worker_of(server).pid} yes {tmp_path}" != first


async def test_several_workers_of_a_sync_model(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a sync model, --workers 2 and --gpus 2, when two predictions come at once, then they run side by side, each
    worker with its device; when one worker is killed, only its prediction fails, and the other goes on serving."""
    (tmp_path / "predict.py").write_text(
        "import os, time\nfrom cog import BaseRunner\n\n"
        "class Runner(BaseRunner):\n    def run(self, seconds: float = 0.0) -> str:\n"
        "        print('started')\n        time.sleep(seconds)\n"
        "        return f'{os.getpid()} {os.environ[\"CUDA_VISIBLE_DEVICES\"]}'\n"
    )
    with trio.fail_after(60):
        async with serve_model(tmp_path / "predict.py", "--workers", "2", "--gpus", "2") as server:
            while any(worker["status"] != "READY" for worker in (await server.health())["workers"]):
                await trio.sleep(0.05)
            pids = [worker["pid"] for worker in (await server.health())["workers"]]
            assert sorted(pids) == sorted(child.pid for child in children_of(server))
            outputs: list[str] = []

            async def ask() -> None:
                outputs.append((await server.predict({"seconds": 0.5})).json()["output"])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                nursery.start_soon(ask)
            assert sorted(outputs) == sorted([f"{pids[0]} 0", f"{pids[1]} 1"])
            await server.start("a", {"seconds": 30})
            await server.start("b", {"seconds": 30})
            assert (await server.predict()).status_code == 409
            await server.until_logs("a", "started")
            await server.until_logs("b", "started")
            os.kill(pids[0], signal.SIGKILL)
            while (await server.health())["workers"][0]["status"] != "DEFUNCT":
                await trio.sleep(0.05)
            statuses = {}
            for id in ("a", "b"):
                with trio.move_on_after(0.5):
                    await server.finished(id)
                statuses[id] = (await server.look(id))["status"]
            assert sorted(statuses.values()) == ["failed", "processing"]
            assert (await server.health())["status"] == "BUSY"
            (lives,) = (id for id, status in statuses.items() if status == "processing")
            await server.cancel(lives)
            await server.finished(lives)
            assert (await server.predict()).json()["output"] == f"{pids[1]} 1"
            said = [(entry.get("message", ""), entry["worker"]) for entry in server.log if "worker" in entry]
    assert sorted(worker for text, worker in said if text == "Server ready") == [0, 1]
    assert [worker for text, worker in said if text.startswith("Worker died")] == [0]
