"""`python -m bench.micro.replication`: what durability=replicated costs, with two followers here.

Two tables: latency of acks=all with one 100-byte record a request at fixed rates, and throughput of
100 KB batches, each with durability=local and replicated alternately at one broker. The broker, its
two followers (min.insync.replicas=3, so that all of them are waited for) and the load client share
the cores and the disk, on which each byte is written three times. Temporary folders.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench import client, report
from bench.client import Job, JobResult, LoadError
from bench.loads import MB, bulk, paced
from bench.server import Server, free_port, kafkawire
from kafkawire.childprocess.frames import pack, read_frame
from kafkawire.client.connection import ClientConnection
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication.options import FollowerOptions, FollowerReady

CREATE = 19
FOLLOWERS = (2, 3)
RATES = (100, 1000, 2000)
WARMUP_S = 2.0
BOTH = ("local", "replicated")
LATENCY = ("acks=all", "p50 ms", "p99 ms", "CPU us/req")
THROUGHPUT = ("100 KB batches", "MB/s", "min", "max", "CPU ms/MB", "p50 ms")
SETTINGS = {
    "min.insync.replicas": "3",
    "log.unreleased.max.bytes": str(16 << 30),
    "cut.interval.ms": "86400000",  # nothing is cut or uploaded meanwhile: it is the same for both
}


@contextmanager
def follower(folder: Path, node_id: int) -> Iterator[FollowerRow]:
    """A follower process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-P", "-m", "kafkawire.replication.main", str(os.getpid())]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()]
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            descriptors = (listener.fileno(),)
            options = FollowerOptions(str(folder), descriptors, "", False, "warning", "text")
            process.stdin.write(b"".join(pack(options)))
            process.stdin.flush()
            frame = read_frame(process.stdout.fileno())
            ready = pickle.loads(frame or b"")
            assert isinstance(ready, FollowerReady)
            port = listener.getsockname()[1]
            yield FollowerRow(ready.replica_id.hex(), node_id, "127.0.0.1", port, ready.key)
        finally:
            process.stdin.close()
            process.wait()


async def register(url: str, rows: list[FollowerRow]) -> None:
    """Store followers in new metadata."""
    metadata = SqlMetadata(url)
    await metadata.open()
    for row in rows:
        await metadata.transact(lambda session, row=row: replica_sets.register(session, row, 1))  # type: ignore[misc]
    await metadata.close()


class Side:
    """A broker with two followers."""

    def __init__(self, folder: Path, rows: list[FollowerRow]) -> None:
        url = f"sqlite:///{folder}/metadata.db"
        asyncio.run(register(url, rows))
        settings = {
            **SETTINGS,
            "tier.url": str(folder / "tier"),
            "replication.listener": f"127.0.0.1:{free_port()}",
        }
        plain = kafkawire(durable=True)

        def command(port: int, data: Path) -> list[str]:
            words = [*plain.command(port, data), "--metadata", url]
            for key, value in settings.items():
                words += ["--set", f"{key}={value}"]
            return words

        cores = os.sched_getaffinity(0)
        self.server = Server(replace(plain, command=command), folder / "data", cores)
        self.server.start()

    def create(self, durability: str) -> None:
        """Create a topic of one partition with this name, and wait until it accepts records."""
        settings = [CreatableTopicConfig("durability", durability)]
        if durability == "local":
            settings.append(CreatableTopicConfig("min.insync.replicas", "1"))
        topic = CreatableTopic(durability, 1, 1, configs=settings)
        with closing(ClientConnection("127.0.0.1", self.server.port)) as asking:
            (found,) = asking.request(CREATE, CreateTopicsRequest(topics=[topic])).topics
        if found.error_code:
            raise LoadError(f"cannot create {durability}: {found.error_message}")
        until = time.monotonic() + 30
        while True:
            try:
                self.load(paced(10, topic=durability, acks=-1, connections=1), 1.0, 0.0)
                return
            except LoadError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def load(self, job: Job, seconds: float, warmup: float = WARMUP_S) -> JobResult:
        """Run the load client once."""
        options = {"port": self.server.port, "seconds": seconds, "warmup": warmup, "spin": 0}
        (found,) = client.run([job], {**options, "server_pid": self.server.pid})
        if found.errors:
            raise LoadError(f"{job.mode}: {found.error} {ErrorCode.NOT_ENOUGH_REPLICAS}")
        return found


def latencies(side: Side, seconds: float, rounds: int) -> list[list[str]]:
    """The rows of the first table: the median of all rounds."""
    rows = []
    for rate in RATES:
        found: dict[str, list[JobResult]] = {name: [] for name in BOTH}
        for number in range(rounds):
            for name in BOTH if number % 2 else BOTH[::-1]:
                job = paced(rate, topic=name, acks=-1, connections=4)
                found[name].append(side.load(job, seconds))
        for name, results in found.items():
            p50, p99 = (
                median(each.latency_us[key] for each in results) / 1000 for key in ("p50", "p99")
            )
            cpu = median(each.cpu_us for each in results)
            figures = map(report.number, (p50, p99, cpu))
            rows.append([f"{name}, {rate} records/s", *figures])
    return rows


def throughput(side: Side, seconds: float, rounds: int) -> list[list[str]]:
    """The rows of the second table."""
    found: dict[str, list[JobResult]] = {name: [] for name in BOTH}
    for number in range(rounds):
        for name in BOTH if number % 2 else BOTH[::-1]:
            job = bulk(100, topic=name, acks=-1, connections=8, inflight=2)
            found[name].append(side.load(job, seconds))
    rows = []
    for name, results in found.items():
        rates = [each.mb_s for each in results]
        cost = median(each.server_cpu_s / each.bytes * MB * 1000 for each in results)
        p50 = median(each.latency_us["p50"] for each in results) / 1000
        figures = [median(rates), min(rates), max(rates), cost, p50]
        rows.append([f"{name}, 16 in flight", *map(report.number, figures)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    client.build()
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="kafkawire-replication-") as name,
        ExitStack() as followers,
    ):
        folder = Path(name)
        rows = [
            followers.enter_context(follower(folder / f"replicas-{node}", node))
            for node in FOLLOWERS
        ]
        side = Side(folder, rows)
        try:
            for durability in BOTH:
                side.create(durability)
            found = latencies(side, args.seconds, args.rounds)
            report.show(f"latency, {args.rounds} rounds", LATENCY, found)
            found = throughput(side, args.seconds, args.rounds)
            report.show(f"throughput, {args.rounds} rounds", THROUGHPUT, found)
        finally:
            side.server.discard()
    print(f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    main()
