"""Machines of one cluster that take over brokers of each other: `kafkawire serve` under its
supervisor, with a data folder of its own, on one PostgreSQL and one bucket.

with Network() as network, Machines(folder, network, url, minio, tier_url) as machines:
    machines.kill(2)
    machines.wait_for_host(2, {1, 3})

Machine N is that of broker N. Its links are (N, SQL) and (N, S3); guests on it use them, too. With
`followers_linked`, the links to the follower of machine M are (N, follower(M)) for each N. Without,
followers are connected to directly, so that a connection is refused if one does not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kafkawire.broker.followers.opening import read_identity
from kafkawire.testing.process import BrokerProcess
from tests.kit.cluster import metadata_url
from tests.kit.faulty_cluster import S3, SQL, FaultyCluster
from tests.kit.followers import stored_sets
from tests.kit.minio import Minio
from tests.kit.ports import free_port
from tests.kit.proxy import Address, Network
from tests.kit.waiting import wait_until

LEASE_S = 5.0
REPLICATED = {"durability": "replicated", "min.insync.replicas": 2}
"""Settings of machines that replicate; each has a follower with an address of its own."""
SETTINGS = {
    "cluster.takeover.enable": True,
    "cluster.return.delay.ms": 2000,
    "controlled.shutdown.enable": False,  # most tests stop machines only at their end
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

    def stop(self, timeout_s: float = 60.0) -> None:
        super().stop(timeout_s)  # it may hand over partitions for 20 s

    def kill(self) -> None:
        if self.running:
            self.signal_all(signal.SIGSTOP)
            # The supervisor is last: the kernel continues stopped processes that it leaves.
            for pid in reversed(self.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        super().kill()

    def is_connected_from(self, address: Address) -> bool:
        """Return whether a process of this machine has a connection from this address."""
        for pid in self.processes() if self._child is not None else ():
            with contextlib.suppress(psutil.Error):
                ends = psutil.Process(pid).net_connections("tcp4")
                if any(each.laddr == address for each in ends):
                    return True
        return False

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
    """Machines by node id. `settings` are added to SETTINGS; `followers_linked`: other machines
    reach followers by links."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        url: str,
        minio: Minio,
        tier_url: str,
        nodes: Sequence[int] = (1, 2, 3),
        settings: Mapping[str, object] | None = None,
        followers_linked: bool = False,
        own: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        self.machines: dict[int, Machine] = {}
        self._url = url
        self._linked = [str(each) for each in nodes] if followers_linked else []
        super().__init__(
            folder, network, url, minio, tier_url, nodes, {**SETTINGS, **(settings or {})}, own
        )

    def _process(self, data: Path, url: str, settings: Mapping[str, object]) -> BrokerProcess:
        node = str(settings["node.id"])
        metadata = self._through(node, SQL, url)
        endpoint = self._through(node, S3, self._minio.endpoint)
        if settings["durability"] == "replicated":
            settings = {**settings, **self._follower_settings(int(node))}
        made = Machine(data, endpoint, settings, ["--metadata", metadata])
        self._addresses[int(node)] = "127.0.0.1", made.port
        self.machines[int(node)] = made
        return made

    def _follower_settings(self, node: int) -> dict[str, str]:
        port = free_port()
        found = {"replication.listener": f"127.0.0.1:{port}"}
        if self._linked:
            target = "127.0.0.1", port
            linked = self.network.links(self._linked, follower(node), target, self._source_of)
            found["replication.advertised.listener"] = f"127.0.0.1:{linked}"
        return found

    def _source_of(self, address: Address) -> str | None:
        """Return the machine that has a connection from an address."""
        for node, machine in self.machines.items():
            if machine.is_connected_from(address):
                return str(node)
        return None

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

    def in_sync(self) -> dict[int, set[int]]:
        """Return the machines whose followers are in sync, by broker; 0: a follower whose disk is
        lost. From SQL: in Metadata, that one has the node id of the one that replaces it."""
        identities = {at: read_identity(str(each.data)) for at, each in self.machines.items()}
        machines = {own.replica_id.hex(): at for at, own in identities.items() if own is not None}
        return {
            each.node_id: {machines.get(member, 0) for member in each.in_sync}
            for each in asyncio.run(stored_sets(self._url))
        }

    def wait_for_in_sync(self, node: int, machines: Collection[int]) -> None:
        """Wait until the followers of these machines are in sync for a broker, and no others."""
        wait_until(
            lambda: self.in_sync().get(node) == set(machines),
            lambda: f"{machines} in sync for broker {node}: {self.in_sync()}",
        )

    def wait_for_all_in_sync(self) -> None:
        """Wait until the followers of all other machines are in sync for each broker."""
        expected = {node: self.machines.keys() - {node} for node in self.machines}
        wait_until(lambda: self.in_sync() == expected, lambda: f"all in sync: {self.in_sync()}")


@contextmanager
def running(
    folder: Path,
    request: pytest.FixtureRequest,
    minio: Minio,
    tier_url: str,
    settings: Mapping[str, object] | None = None,
    followers_linked: bool = False,
    nodes: Sequence[int] = (1, 2, 3),
    own: Mapping[int, Mapping[str, object]] | None = None,
) -> Iterator[Machines]:
    """Run machines that know each other. One test at a time does: they and their clients keep
    two cores busy, and with twice as many a lease of LEASE_S ends while all of them live."""
    url = metadata_url("postgresql", folder, request)
    with (
        only_one("machines"),
        Network() as network,
        Machines(
            folder, network, url, minio, tier_url, nodes,
            settings=settings, followers_linked=followers_linked, own=own,
        ) as made,
    ):  # fmt: skip
        wait_until(
            lambda: all(made.listed(node) == [*made.machines] for node in made.machines),
            "all brokers",
        )
        yield made


@contextmanager
def only_one(what: str) -> Iterator[None]:
    """Wait until no other process on this machine is in this block."""
    path = Path(tempfile.gettempdir(), f"kafkawire-tests-{os.getuid()}-{what}.lock")
    with path.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def follower(node: int) -> str:
    """Return the destination of links to the follower of a machine."""
    return f"follower {node}"


def wait_s(seconds: float) -> None:
    """Let a fault last: what must not happen can be seen only after a time."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, f"{seconds:g} s")


__all__ = [
    "LEASE_S", "REPLICATED", "S3", "SQL", "Machine", "Machines", "follower", "running", "wait_s",
]  # fmt: skip
