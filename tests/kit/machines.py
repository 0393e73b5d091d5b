"""Machines of one cluster that take over brokers of each other: `kafkawire serve` under its
supervisor, with a data folder of its own, on one PostgreSQL and one bucket.

with Network() as network, Machines(folder, network, url, minio, tier_url) as machines:
    machines.kill(2)
    machines.wait_for_host(2, {1, 3})

Machine N is that of broker N. Its links are (N, SQL) and (N, S3); guests on it use them, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from kafkawire.broker.followers.own import read_identity
from kafkawire.testing.process import BrokerProcess
from tests.kit.faulty_cluster import S3, SQL, FaultyCluster
from tests.kit.followers import stored_sets
from tests.kit.minio import Minio
from tests.kit.ports import free_port
from tests.kit.proxy import Network
from tests.kit.waiting import wait_until

LEASE_S = 3.0
REPLICATED = {"durability": "replicated", "min.insync.replicas": 2}
"""Settings of machines that replicate; each has a follower with an address of its own."""
SETTINGS = {
    "cluster.takeover.enable": True,
    "cluster.return.delay.ms": 2000,
    "durability": "s3",
    "lease.ms": round(LEASE_S * 1000),
}


class Machine(BrokerProcess):
    """A supervisor and its workers. Signals go to all of its processes."""

    def __init__(
        self,
        data: Path,
        endpoint: str,
        settings: Mapping[str, object],
        arguments: Sequence[str],
    ) -> None:
        """`endpoint`: the address of S3 for this machine."""
        own = f"--worker-ports={free_port()}"
        super().__init__(
            data, port=free_port(), settings=settings, arguments=[*arguments, own],
            start_timeout_s=90,
        )  # fmt: skip
        self._endpoint = endpoint

    def _words(self) -> list[str]:
        self._worker_ports.clear()  # they are among the arguments
        return super()._words()

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", self._endpoint)
            super().start()

    def processes(self) -> list[int]:
        """The supervisor, its workers and their processes."""
        try:
            supervisor = psutil.Process(self.pid)
            return [self.pid, *(each.pid for each in supervisor.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes, the supervisor first."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        if self.running:
            self.signal_all(signal.SIGSTOP)
            # The supervisor is last: the kernel continues stopped processes that it leaves.
            for pid in reversed(self.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        super().kill()

    def worker_pids(self) -> dict[int, int]:
        """The processes of the workers that run, by node id."""
        found = {}
        for child in psutil.Process(self.pid).children() if self.running else ():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if "--worker" in words:
                nodes = [word for word in words if word.startswith("node.id=")]
                found[int(nodes[-1].removeprefix("node.id="))] = child.pid
        return found

    def serves(self, node: int) -> bool:
        """Whether a worker of this machine serves as a broker."""
        pid = self.worker_pids().get(node)
        started = f"started worker {node} as process {pid}\n"
        return pid is not None and f"worker {node} serves at" in self.output.partition(started)[2]


class Machines(FaultyCluster):
    """Machines by node id. `settings` are added to SETTINGS."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        url: str,
        minio: Minio,
        tier_url: str,
        nodes: Sequence[int] = (1, 2, 3),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.machines: dict[int, Machine] = {}
        self._url = url
        super().__init__(
            folder, network, url, minio, tier_url, nodes, {**SETTINGS, **(settings or {})}
        )

    def _process(self, data: Path, url: str, settings: Mapping[str, object]) -> BrokerProcess:
        node = str(settings["node.id"])
        metadata = self._through(node, SQL, url)
        endpoint = self._through(node, S3, self._minio.endpoint)
        if settings["durability"] == "replicated":
            settings = {**settings, "replication.listener": f"127.0.0.1:{free_port()}"}
        made = Machine(data, endpoint, settings, ["--metadata", metadata])
        self._addresses[int(node)] = "127.0.0.1", made.port
        self.machines[int(node)] = made
        return made

    def end(self) -> None:
        """Kill the machines that still run, and keep what they have written."""
        super().end()
        for node, machine in self.machines.items():
            (self._folder / f"machine-{node}.log").write_text(machine.output)

    def follower_pid(self, node: int) -> int:
        """Return the process of the follower of a machine."""
        children = psutil.Process(self.machines[node].pid).children()
        (found,) = (each for each in children if "kafkawire.replication.main" in each.cmdline())
        return int(found.pid)

    def pause_follower(self, node: int) -> int:
        """Stop the follower of a machine with SIGSTOP; return its process id."""
        pid = self.follower_pid(node)
        os.kill(pid, signal.SIGSTOP)
        return pid

    def kill_follower(self, node: int) -> None:
        """Kill the follower of a machine; the supervisor starts it again."""
        os.kill(self.follower_pid(node), signal.SIGKILL)

    def pause(self, node: int) -> None:
        """Stop all processes of a machine with SIGSTOP."""
        self.machines[node].signal_all(signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int) -> None:
        self.machines[node].signal_all(signal.SIGCONT)
        self._paused.discard(node)

    def hosts(self, node: int) -> set[int]:
        """The machines that are not paused and have a process that serves as a broker."""
        return {
            each
            for each, machine in self.machines.items()
            if each not in self._paused and machine.serves(node)
        }

    def wait_for_host(self, node: int, machines: Collection[int]) -> int:
        """Wait until a broker is served by one of these machines and no other; return it."""

        def found() -> set[int]:
            hosts = self.hosts(node)
            return hosts if len(hosts) == 1 and hosts <= set(machines) else set()

        (host,) = wait_until(found, lambda: f"broker {node} on {machines}: {self.hosts(node)}")
        return host

    def create_everywhere(self, topic: str, leaders: Sequence[int]) -> None:
        """Create a topic, and wait until all brokers know it."""
        self.create(1, topic, leaders)
        for node in self.machines:
            wait_until(
                lambda node=node: len(self.leaders(node, topic)) == len(leaders),  # type: ignore[misc]
                f"{topic} at broker {node}",
            )

    def wait_for_all_at_home(self) -> None:
        """Wait until every machine serves its own broker, and none serves another one."""
        for node in self.machines:
            self.wait_for_host(node, {node})

    def wait_for_all_in_sync(self) -> None:
        """Wait until the followers of all other machines are in sync for each broker. From SQL: in
        Metadata, a follower whose disk is lost has the node id of the one that replaces it."""

        def lacking() -> list[int]:
            found = {node: read_identity(str(each.data)) for node, each in self.machines.items()}
            ids = {node: each.replica_id.hex() if each else "" for node, each in found.items()}
            stored = {each.node_id: each.in_sync for each in asyncio.run(stored_sets(self._url))}
            return [
                node
                for node, own in ids.items()
                if stored.get(node) != frozenset(ids.values()) - {own}
            ]

        wait_until(lambda: not lacking(), lambda: f"all followers in sync of brokers {lacking()}")


def wait_s(seconds: float) -> None:
    """Let a fault last: what must not happen can be seen only after a time."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, f"{seconds:g} s")


__all__ = ["LEASE_S", "REPLICATED", "S3", "SQL", "Machine", "Machines", "wait_s"]
