"""`python -m bench.failover`: three machines, compared with three nodes of Apache Kafka.

kafkawire: durability=s3, then replicated (min.insync.replicas=2), on PostgreSQL and MinIO (those of
the tests), takeovers enabled. Kafka: three KRaft nodes, each broker and controller, replication
factor 3, min.insync.replicas=2. Both with their default times of leases and sessions. One client,
librdkafka with acks=all and its other defaults, loads one topic with three partitions, each led by
another broker:

- latency at a fixed rate of 100-byte records, from the call of `produce` to the delivery report;
- throughput of 1 KiB records, as fast as they are taken;
- restart: each broker in turn is stopped with SIGTERM under the fixed rate, and started again at
  once; the longest time without an acknowledgement in any partition, until some seconds later, when
  ours leads again what it led (Kafka moves leaders back after five minutes);
- failover: one broker is killed (SIGKILL) under the fixed rate; the longest time without an
  acknowledgement in any partition. Then it is started again, for the next round.

Of kafkawire also the transactions of PostgreSQL in a second for each broker, at rest and under that
rate.

All processes and the client share the cores of this machine: compare columns, not with other
machines. Needs Java 17, Maven, PostgreSQL and confluent-kafka; 2 GB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench import report
from bench.client import LoadError
from bench.peer_recipes import JVM, NotInstalled, format_storage, install, java
from bench.postgres import load_of
from bench.server import Recipe, Server, free_port
from tests.kit import minio
from tests.kit.machines import Machine
from tests.kit.postgres import new_database, postgres
from tests.kit.waiting import wait_until

NODES = (1, 2, 3)
TOPIC = "failover"
BULK_BYTES = 1024
WARMUP_S = 10.0
KILLED_S = 15.0
"""How long a broker is gone: Kafka's default session timeout is 9 s, our lease 5 s."""
OURS = {"cluster.takeover.enable": True}
CLUSTER = "kafkawireFailoverAAAAA"  # 22 characters of base64
KAFKA = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
min.insync.replicas=2
"""
RESTARTED_S = 10.0
"""How long a load continues after a restart."""
HEAD = (
    "three machines, acks=all", "p50 ms", "p99 ms", "MB/s", "restarts s", "failover s", "of rounds",
    "SQL/s at rest", "under load",
)  # fmt: skip


class Side(Protocol):
    """Three brokers. `bootstrap`: the addresses of all."""

    bootstrap: str
    copies: int

    def start_all(self) -> None: ...
    def kill(self, node: int) -> None: ...
    def shut_down(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...
    def stop(self) -> None: ...


class Kafka:
    """Three nodes of Apache Kafka."""

    copies = 3

    def __init__(self, folder: Path, cores: set[int]) -> None:
        controllers = {node: free_port() for node in NODES}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
        self._servers: dict[int, Server] = {}
        for node, controller in controllers.items():
            recipe = Recipe("Kafka", _kafka_command, _prepared(node, controller, voters))
            self._servers[node] = Server(recipe, folder / f"kafka-{node}", cores)
        self.bootstrap = ",".join(f"127.0.0.1:{each.port}" for each in self._servers.values())

    def start_all(self) -> None:
        """Start all at once: a node serves only when most of them run."""
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(self.start, NODES))

    def start(self, node: int) -> None:
        self._servers[node].start()

    def kill(self, node: int) -> None:
        process = self._servers[node].process
        assert process is not None
        process.kill()
        process.wait()

    def shut_down(self, node: int) -> None:
        process = self._servers[node].process
        assert process is not None
        process.terminate()
        process.wait()

    def stop(self) -> None:
        """Kill all nodes: three that stop in order wait for each other."""
        for server in self._servers.values():
            if server.process is not None:
                server.process.kill()
            server.discard()


def _kafka_command(port: int, folder: Path) -> list[str]:
    options = ["-Xmx512m", *JVM[1:]]
    return java("kafka.Kafka", str(folder / "server.properties"), options=options)


def _prepared(node: int, controller: int, voters: str) -> Callable[[int, Path], None]:
    def prepare(port: int, folder: Path) -> None:
        if (folder / "server.properties").exists():
            return
        settings = KAFKA.format(
            node=node, controller=controller, voters=voters, port=port, folder=folder
        )
        (folder / "server.properties").write_text(settings)
        words = ["format", "-t", CLUSTER, "-c", str(folder / "server.properties")]
        format_storage(words)

    return prepare


class Ours:
    """Three machines of kafkawire. `metadata`: the URL of their database."""

    copies = 1

    def __init__(
        self, folder: Path, metadata: str, server: minio.Minio, tier: str, durability: str
    ) -> None:
        self._machines: dict[int, Machine] = {}
        for node in NODES:
            settings = {**OURS, "node.id": node, "tier.url": tier, "durability": durability}
            if durability == "replicated":
                settings["min.insync.replicas"] = 2
                settings["replication.listener"] = f"127.0.0.1:{free_port()}"
            words = ["--metadata", metadata]
            data = folder / f"data-{node}"
            self._machines[node] = Machine(data, server.endpoint, settings, words)
        self.bootstrap = ",".join(each.bootstrap for each in self._machines.values())
        self.metadata = metadata

    def start_all(self) -> None:
        """Start one after the other: the first one claims the new bucket for the cluster."""
        for node in NODES:
            self.start(node)

    def start(self, node: int) -> None:
        machine = self._machines[node]
        machine.start()
        wait_until(lambda: machine.serves(node), f"broker {node} at home")

    def kill(self, node: int) -> None:
        self._machines[node].kill()

    def shut_down(self, node: int) -> None:
        self._machines[node].stop()

    def stop(self) -> None:
        """Kill all machines."""
        for machine in self._machines.values():
            machine.kill()


class Load:
    """A producer with acks=all to partitions 0, 1 and 2 in turn. `rate`: small records in a second;
    `waits_ms`: of each record; `acked_at`: times of acknowledgements by partition."""

    def __init__(self, bootstrap: str, rate: float) -> None:
        self._rate = rate
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 2, "linger.ms": 0}
        )
        self.waits_ms: list[float] = []
        self.acked_at: dict[int, list[float]] = {index: [] for index in range(len(NODES))}
        self.bytes = 0
        self.failed: list[str] = []

    def send(self, number: int, value: bytes) -> None:
        """Send one record; waits while the producer's queue is full."""
        begun = time.monotonic()

        def delivered(error: object, message: Any) -> None:
            now = time.monotonic()
            if error is not None:
                self.failed.append(str(error))
                return
            self.waits_ms.append((now - begun) * 1000)
            self.acked_at[message.partition()].append(now)
            self.bytes += len(value)

        while True:
            try:
                self._producer.produce(
                    TOPIC, value, partition=number % len(NODES), on_delivery=delivered
                )
                break
            except BufferError:
                self._producer.poll(0.05)
        self._producer.poll(0)

    def paced(self, seconds: float, during: threading.Event | None = None) -> None:
        """Send small records at the rate for a time, or until `during` is set."""
        value, begun, number = bytes(100), time.monotonic(), 0
        while time.monotonic() - begun < seconds and not (during and during.is_set()):
            self.send(number, value)
            number += 1
            ahead = begun + number / self._rate - time.monotonic()
            if ahead > 0:
                self._producer.poll(ahead)
        self.flush()

    def bulk(self, seconds: float) -> float:
        """Send large records as fast as they are taken; return MB/s of those acknowledged."""
        value, begun, number = bytes(BULK_BYTES), time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            self.send(number, value)
            number += 1
        self.flush()
        return self.bytes / 1e6 / (time.monotonic() - begun)

    def flush(self) -> None:
        """Wait until every record is acknowledged. Raises LoadError if one is not."""
        left = self._producer.flush(120)
        if left or self.failed:
            raise LoadError(f"{left} records without an answer, failed: {self.failed[:3]}")


def longest_wait(acked_at: Mapping[int, Sequence[float]], since: float) -> float:
    """The longest time from `since` on without an acknowledgement, of all partitions."""
    longest = 0.0
    for times in acked_at.values():
        before = since
        for at in (each for each in times if each >= since):
            longest = max(longest, at - before)
            before = at
    return longest


@contextmanager
def loaded(side: Side, rate: float) -> Iterator[Load]:
    """Send to all partitions at the rate."""
    load, ended = Load(side.bootstrap, rate), threading.Event()
    with ThreadPoolExecutor(1) as pool, ending(ended):
        sending = pool.submit(load.paced, 600.0, ended)
        wait_until(lambda: all(load.acked_at.values()), "acknowledgements of all partitions")
        yield load
        ended.set()
        sending.result()


def wait_for_all(load: Load, after: float) -> None:
    """Wait until every partition has an acknowledgement after a time."""
    wait_until(lambda: time.monotonic() > after, "the time of the fault")
    wait_until(lambda: all(each[-1] > after for each in load.acked_at.values()), "all partitions")


def failover(side: Side, node: int, rate: float) -> float:
    """Kill a broker under load, start it again; return the longest wait before it was started."""
    with loaded(side, rate) as load:
        killed = time.monotonic()
        side.kill(node)
        wait_for_all(load, killed + KILLED_S)
        waited = longest_wait(load.acked_at, killed)
    side.start(node)
    return waited


def restart(side: Side, node: int, rate: float) -> float:
    """Stop a broker under load, and start it again; return the longest wait."""
    with loaded(side, rate) as load:
        stopped = time.monotonic()
        side.shut_down(node)
        side.start(node)
        wait_for_all(load, time.monotonic() + RESTARTED_S)
        return longest_wait(load.acked_at, stopped)


@contextmanager
def ending(event: threading.Event) -> Iterator[None]:
    """Set an event at the end, also after a failure."""
    try:
        yield
    finally:
        event.set()


def create(side: Side) -> None:
    """Create the topic, with one partition for each broker, and wait until it can be used."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 2})
    wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == len(NODES), "all brokers")
    placed = [
        [NODES[(index + copy) % len(NODES)] for copy in range(side.copies)]
        for index in range(len(NODES))
    ]
    admin.create_topics([NewTopic(TOPIC, len(NODES), replica_assignment=placed)])[TOPIC].result(60)


def sql_rate(side: Side, work: Callable[[], None]) -> str:
    """Return the transactions in a second of each broker while `work` runs; empty for Kafka."""
    if not isinstance(side, Ours):
        work()
        return ""
    return f"{load_of(side.metadata, work).transactions / len(NODES):.1f}"


def measured(
    name: str, side: Side, seconds: float, rounds: int, rate: float, step: report.Step
) -> list[str]:
    """Start a side, and measure it; return its row."""
    side.start_all()
    create(side)
    Load(side.bootstrap, rate).bulk(WARMUP_S)
    step(f"{name}: warm", True)
    rest = sql_rate(side, lambda: time.sleep(seconds))
    paced = Load(side.bootstrap, rate)
    under_load = sql_rate(side, lambda: paced.paced(seconds))
    waits = sorted(paced.waits_ms)
    step(f"{name}: latency", True)
    mb_s = Load(side.bootstrap, rate).bulk(seconds)
    step(f"{name}: throughput", True)
    restarts = []
    for node in NODES:
        restarts.append(restart(side, node, rate))
        step(f"{name}: restart {restarts[-1]:.1f} s", True)
    failovers = []
    for number in range(rounds):
        failovers.append(failover(side, NODES[number % len(NODES)], rate))
        step(f"{name}: failover {failovers[-1]:.1f} s", True)
    return [
        name,
        f"{waits[len(waits) // 2]:.1f}",
        f"{waits[len(waits) * 99 // 100]:.1f}",
        f"{mb_s:.1f}",
        in_order(restarts),
        f"{median(failovers):.1f}" if failovers else "",
        in_order(failovers),
        rest,
        under_load,
    ]


def in_order(times_s: Sequence[float]) -> str:
    """Return times for the table, the shortest first."""
    return ", ".join(f"{each:.1f}" for each in sorted(times_s))


@contextmanager
def ours(durability: str, folder: Path) -> Iterator[Ours]:
    """Three machines with a database and a bucket, not started."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        url = stack.enter_context(postgres())
        server = stack.enter_context(minio.running(folder / "minio"))
        database = asyncio.run(new_database(url))
        made = Ours(folder, database, server, minio.new_tier(server, patch), durability)
        stack.callback(made.stop)
        yield made


@contextmanager
def kafka(folder: Path) -> Iterator[Kafka]:
    """Three nodes of Kafka, which is installed, not started."""
    made = Kafka(folder, set(range(os.cpu_count() or 1)))
    try:
        yield made
    finally:
        made.stop()


def main() -> None:
    """Measure both sides, one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load (20)")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each side (3)")
    parser.add_argument("--rate", type=float, default=500.0, help="small records a second (500)")
    parser.add_argument("--only", default="", help="sides whose name has this text (all)")
    given = parser.parse_args()
    rows = []
    sides: dict[str, Any] = {
        "kafkawire, durability=s3": partial(ours, "s3"),
        "kafkawire, replicated, min ISR 2": partial(ours, "replicated"),
        "Kafka, 3 of 3, min ISR 2": kafka,
    }
    sides = {name: side for name, side in sides.items() if not given.only or given.only in name}
    try:
        install("kafka")
    except NotInstalled as why:
        parser.exit(3, f"{why}\n")
    with report.progress(len(sides) * (3 + len(NODES) + given.rounds)) as step:
        for name, side in sides.items():
            with (
                tempfile.TemporaryDirectory(prefix="kafkawire-failover-") as folder,
                side(Path(folder)) as brokers,
            ):
                rows.append(measured(name, brokers, given.seconds, given.rounds, given.rate, step))
    report.show(f"Three machines on this one, {given.rate:g} records/s", HEAD, rows)


if __name__ == "__main__":
    main()
