"""A drill that plays kubelet and Service for docs/examples/deploy/kubernetes.yaml: probes, a pod that is deleted under
load, clients that hear of it late, and no lost reply."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import trio
import yaml

from scenarios.container import Container, open_container
from scenarios.places import EXAMPLES, MODELS

MANIFEST: Final = next(yaml.safe_load_all((EXAMPLES / "deploy" / "kubernetes.yaml").read_text()))
POD: Final = MANIFEST["spec"]["template"]["spec"]
BOX: Final = POD["containers"][0]
PERIOD: Final = 0.05  # seconds between two probes, where the manifest has 5
LAG: Final = 0.3  # seconds until the clients have heard that a pod is to go
PAUSE: Final = 0.6  # seconds of the preStop hook, where the manifest has 5
REQUESTS: Final = 200
CLIENTS: Final = 8


@dataclass
class Cluster:
    """Some pods, what the clients know of them, and what became of the requests."""

    pods: dict[str, Container]
    ready: set[str] = field(default_factory=set)  # by the last probe
    forgotten: set[str] = field(default_factory=set)  # deleted, and the clients have heard of it
    answered: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    open: Counter[str] = field(default_factory=Counter)  # requests on their way
    gone: bool = False  # a deleted pod has ended

    @property
    def endpoints(self) -> list[str]:
        return sorted(self.ready - self.forgotten)

    async def probe(self, name: str) -> None:
        """The readiness probe of one pod, as the manifest has it."""
        server = self.pods[name].server
        while server.process.poll() is None:
            try:
                ready = (await server.client.get(BOX["readinessProbe"]["httpGet"]["path"])).status_code == 200
            except httpx.TransportError:
                ready = False
            (self.ready.add if ready else self.ready.discard)(name)
            await trio.sleep(PERIOD)
        self.ready.discard(name)

    async def client(self, numbers: itertools.count[int], loaded: trio.Event) -> None:
        """Requests one after the other, to one ready pod after the other, without a second try."""
        while (number := next(numbers)) < REQUESTS or not self.gone:
            names = self.endpoints
            await self.ask(names[number % len(names)], {"name": str(number), "seconds": 0.01})
            if number >= REQUESTS // 4:
                loaded.set()

    async def ask(self, name: str, input: dict[str, Any]) -> None:
        self.open[name] += 1
        try:
            reply = await self.pods[name].server.predict(input)
        except httpx.TransportError as error:
            self.lost.append(f"{name}: {error!r}")
            return
        finally:
            self.open[name] -= 1
        if reply.status_code == 200 and reply.json()["status"] == "succeeded":
            self.answered[name] += 1
        else:
            self.lost.append(f"{name}: {reply.status_code} {reply.text}")

    async def delete(self, name: str, nursery: trio.Nursery) -> None:
        """What happens to a pod: the hook runs, meanwhile the clients hear of it, then SIGTERM and the grace period."""
        pod = self.pods[name]
        await trio.sleep(LAG)
        nursery.start_soon(self.ask, name, {"name": "long", "seconds": PAUSE + 1})  # still runs at SIGTERM
        self.forgotten.add(name)
        await trio.sleep(PAUSE - LAG)
        with trio.fail_after(30):  # the hook is long enough: on a slow machine that takes longer
            while self.open[name] > 1:
                await trio.sleep(PERIOD)
        pod.send(signal.SIGTERM)
        with trio.fail_after(POD["terminationGracePeriodSeconds"]):
            assert await pod.server.process.wait() == 0
        self.gone = True


async def test_a_pod_that_is_deleted_under_load_loses_no_reply(tmp_path: Path) -> None:
    """Given two pods with 8 clients, when one is deleted as the manifest has it, then it leaves with 0, and each of
    more than 200 requests has been answered well by one of the two, a long one by the pod that went."""
    env = {entry["name"]: entry["value"] for entry in BOX["env"]}
    with trio.fail_after(100):
        async with (
            open_container(MODELS / "waits.py", tmp_path / "first", env=env) as first,
            open_container(MODELS / "waits.py", tmp_path / "second", env=env) as second,
        ):
            assert (await first.server.client.get(BOX["livenessProbe"]["httpGet"]["path"])).status_code == 200
            cluster = Cluster({"first": first, "second": second})
            loaded = trio.Event()
            numbers = itertools.count()
            async with trio.open_nursery() as probes:
                for name in cluster.pods:
                    probes.start_soon(cluster.probe, name)
                with trio.fail_after(10):
                    while len(cluster.endpoints) < 2:
                        await trio.sleep(PERIOD)
                async with trio.open_nursery() as nursery:
                    for _ in range(CLIENTS):
                        nursery.start_soon(cluster.client, numbers, loaded)
                    await loaded.wait()
                    await cluster.delete("first", nursery)
                probes.cancel_scope.cancel()
            assert cluster.lost == []
            assert cluster.answered.total() > REQUESTS
            assert min(cluster.answered["first"], cluster.answered["second"]) >= REQUESTS // 10
            assert cluster.endpoints == ["second"]
