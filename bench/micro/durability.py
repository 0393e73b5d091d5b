"""`python -m bench.micro.durability`: what durability=s3 costs, on MinIO (that of the tests).

Three tables: latency of acks=all with one 100-byte record a request, at fixed rates; throughput of
100 KB batches in both durabilities, alternately; and the time of a start after the data folder was
lost, by the bytes of log objects that no segment has. MinIO, the broker and the load client share
the cores, so a PUT is slower than its time on a quiet machine: the row `PUT` has what the broker
measured. Temporary folders, three times the bytes of the last table.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench import client, report
from bench.client import Job, JobResult, LoadError
from bench.loads import MB, bulk, paced
from bench.server import Server, free_port, kafkawire
from kafkawire.client.connection import ClientConnection
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.kit import minio

CREATE = 19
RATES = (100, 1000, 2000)
WARMUP_S = 1.0
BOTH = ("local", "s3")
BULK = {"acks": -1, "connections": 8}
INFLIGHT = (16, 256)
"""Requests in flight: of few producers, which wait for each object; as many as fill objects."""
STARTS_MB = (100, 1074)
"""100 MB, and the default of log.unreleased.max.bytes."""
LATENCY = ("acks=all", "p50 ms", "p99 ms", "PUTs/s", "PUT ms", "CPU us/req")
THROUGHPUT = ("100 KB batches", "MB/s", "min", "max", "CPU ms/MB", "p50 ms", "PUTs/s")
START = ("unreleased", "start s", "MB/s", "CPU s")
SETTINGS = {
    "log.unreleased.max.bytes": str(16 << 30),
    "cut.interval.ms": "86400000",  # nothing is uploaded meanwhile: it is the same for both
}
PUTS, PUT_SUM, PUT_COUNT = (
    f"kafkawire_log_object{name}"
    for name in ("s_stored_total", "_put_seconds_sum", "_put_seconds_count")
)


@dataclass
class Tier:
    """A MinIO, and the folder for the brokers of a run."""

    server: minio.Minio
    folder: Path


class Side:
    """A broker with a tier of its own, and metadata apart from its data folder."""

    def __init__(self, tier: Tier, cores: set[int]) -> None:
        name = uuid.uuid4().hex[:12]
        folder = tier.folder / name
        folder.mkdir()
        self._metrics = free_port()
        settings = {
            **SETTINGS,
            "tier.url": f"s3://bench-{name}/tier",
            "metrics.listener": f"127.0.0.1:{self._metrics}",
        }
        plain = kafkawire(durable=True)

        def command(port: int, data: Path) -> list[str]:
            words = [*plain.command(port, data), "--metadata", f"sqlite:///{folder}/metadata.db"]
            for key, value in settings.items():
                words += ["--set", f"{key}={value}"]
            return words

        recipe = replace(plain, command=command, env=tier.server.environ)
        self.server = Server(recipe, folder / "data", cores)
        self.server.start()

    def create(self, name: str, durability: str) -> None:
        """Create a topic of one partition."""
        topic = CreatableTopic(name, 1, 1, configs=[CreatableTopicConfig("durability", durability)])
        with closing(ClientConnection("127.0.0.1", self.server.port)) as asking:
            (found,) = asking.request(CREATE, CreateTopicsRequest(topics=[topic])).topics
        if found.error_code:
            raise LoadError(f"cannot create {name}: {found.error_message}")

    def load(self, job: Job, seconds: float, warmup: float = WARMUP_S) -> JobResult:
        """Run the load client once."""
        options = {"port": self.server.port, "seconds": seconds, "warmup": warmup, "spin": 0}
        (found,) = client.run([job], {**options, "server_pid": self.server.pid})
        if found.errors:
            raise LoadError(f"{job.mode}: {found.error}")
        return found

    def lose_folder(self) -> None:
        """Kill the broker and delete its data folder."""
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        shutil.rmtree(self.server.folder)

    def counters(self) -> dict[str, float]:
        """The counters of log objects."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics") as page:
            text = page.read().decode()
        found = {}
        for name in (PUTS, PUT_SUM, PUT_COUNT):
            match = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
            found[name] = float(match[1]) if match else 0.0
        return found


@contextmanager
def side(tier: Tier) -> Iterator[Side]:
    """A running broker, whose data is deleted at the end."""
    made = Side(tier, os.sched_getaffinity(0))
    try:
        yield made
    finally:
        made.server.discard()


def latencies(tier: Tier, seconds: float) -> list[list[str]]:
    """The rows of the first table."""
    rows = []
    with side(tier) as broker:
        broker.create("a", "s3")
        for rate in RATES:
            before = broker.counters()
            found = broker.load(paced(rate, acks=-1, connections=4), seconds)
            after = broker.counters()
            puts, put_s, count = (after[key] - before[key] for key in (PUTS, PUT_SUM, PUT_COUNT))
            figures = [
                found.latency_us["p50"] / 1000, found.latency_us["p99"] / 1000,
                puts / (seconds + WARMUP_S), put_s / count * 1000, found.cpu_us,
            ]  # fmt: skip
            rows.append([f"{rate} records/s", *map(report.number, figures)])
    return rows


def throughput(tier: Tier, seconds: float, rounds: int) -> list[list[str]]:
    """The rows of the second table: both topics of one broker, loaded alternately."""
    rows = []
    with side(tier) as broker:
        for durability in BOTH:
            broker.create(durability, durability)
        for inflight in INFLIGHT:
            rows += compared(broker, inflight, seconds, rounds)
    return rows


def compared(broker: Side, inflight: int, seconds: float, rounds: int) -> list[list[str]]:
    """The rows of one number of requests in flight."""
    found: dict[str, list[JobResult]] = {name: [] for name in BOTH}
    puts = []
    for number in range(rounds):
        for name in BOTH if number % 2 else BOTH[::-1]:
            before = broker.counters()[PUTS]
            job = bulk(100, topic=name, **BULK, inflight=inflight // BULK["connections"])
            found[name].append(broker.load(job, seconds))
            if name == "s3":
                puts.append((broker.counters()[PUTS] - before) / (seconds + WARMUP_S))
    rows = []
    for name, results in found.items():
        rates = [each.mb_s for each in results]
        cost = median(each.server_cpu_s / each.bytes * MB * 1000 for each in results)
        p50 = median(each.latency_us["p50"] for each in results) / 1000
        figures = [median(rates), min(rates), max(rates), cost, p50]
        last = report.number(median(puts)) if name == "s3" else ""
        rows.append([f"{name}, {inflight} in flight", *map(report.number, figures), last])
    return rows


def starts(tier: Tier, sizes_mb: Sequence[int]) -> list[list[str]]:
    """The rows of the third table."""
    rows = []
    for size_mb in sizes_mb:
        with side(tier) as broker:
            broker.create("a", "s3")
            broker.load(
                bulk(100, **BULK, inflight=8, bytes=size_mb * MB), seconds=120.0, warmup=0.0
            )
            broker.lose_folder()
            took_s = broker.server.start()
            figures = [took_s, size_mb / took_s, broker.server.tree_cpu_s()]
            rows.append([f"{size_mb} MB", *map(report.number, figures)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", type=int, nargs="*", default=STARTS_MB, metavar="MB")
    args = parser.parse_args()
    client.build()
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="kafkawire-durability-") as name,
        minio.running(Path(name, "minio")) as server,
    ):
        tier = Tier(server, Path(name))
        report.show("latency with durability=s3", LATENCY, latencies(tier, args.seconds))
        rows = throughput(tier, args.seconds, args.rounds)
        report.show(f"throughput, {args.rounds} rounds", THROUGHPUT, rows)
        report.show("start after the loss of the folder", START, starts(tier, args.starts))
    print(f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    main()
