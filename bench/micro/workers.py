"""`python -m bench.micro.workers`: what a second worker process costs and gives.

Starts the same broker with one process and with `--workers 2`, each on a folder of its own, and
loads them in turn: two load clients at once, each with half of the connections and a topic of its
own, which another worker leads where there are two. Per row: requests for each second of CPU time
of all worker processes and the supervisor, requests per second of wall clock, and the ratios of two
workers to one, as the median, lowest and highest of the rounds. Where there are four cores or more
the workers have cores of their own; otherwise the clients take part of them, and the ratio of wall
clock is lower than on a larger machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench import client, report
from bench.client import Job, JobResult, LoadError
from bench.loads import MB, bulk, fetch, produce
from bench.server import Server, free_port, kafkawire
from kafkawire.client.connection import ClientConnection
from kafkawire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.metadata import MetadataRequest

METADATA, CREATE, DELETE = 3, 19, 20
CLIENTS = 2
"""Load clients at once: with one worker both send to it."""
WARMUP_S = 0.3
VISIBLE_S = 10.0
"""Until every worker knows of a topic: far longer than it takes."""
FILL_BYTES = 48 * MB
HEAD = (
    "row", "req/CPU s: 1", "2 workers", "ratio", "min", "max", "req/s: 1", "2 workers", "ratio",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One load: the job of each client. `durable`: with flush=commit."""

    name: str
    job: Job
    durable: bool = False
    fill: Job | None = None


ROWS = (
    Row("small acks=1 8 in flight", produce(connections=8, inflight=8)),
    Row("small acks=all 8 in flight", produce(connections=8, inflight=8, acks=-1), durable=True),
    Row("bulk 100 KB", bulk(100, connections=8)),
    Row("fetch 16 consumers", fetch(connections=8), fill=bulk(100, acks=-1, bytes=FILL_BYTES)),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of one run of a row."""

    per_cpu_s: float
    per_s: float


class Side:
    """A broker of one or more processes."""

    def __init__(self, workers: int, folder: Path, durable: bool) -> None:
        self.workers = workers
        self.own_ports = [free_port() for _ in range(workers)] if workers > 1 else []
        plain = kafkawire(durable)

        def command(port: int, data: Path) -> list[str]:
            words = list(plain.command(port, data))
            if workers > 1:
                ports = ",".join(map(str, self.own_ports))
                words += ["--workers", str(workers), "--worker-ports", ports]
            return words

        self.server = Server(replace(plain, command=command), folder, self._cores())
        self._made = 0

    def _cores(self) -> set[int]:
        cores = os.sched_getaffinity(0)
        own = len(cores) >= 2 * CLIENTS  # else both sides get all, for figures that compare
        return set(sorted(cores)[: self.workers]) if own else cores

    def port_of(self, number: int) -> int:
        """The port that one of the clients sends to."""
        return self.own_ports[number % self.workers] if self.own_ports else self.server.port

    def topics(self) -> list[str]:
        """Create a topic for each client; return when its worker serves it."""
        self._made += 1
        names = [f"row-{self._made}-{number}" for number in range(CLIENTS)]
        wanted = []
        for number, name in enumerate(names):
            leader = CreatableReplicaAssignment(0, [1 + number % self.workers])
            wanted.append(CreatableTopic(name, -1, -1, [leader]))
        with closing(ClientConnection("127.0.0.1", self.server.port)) as asking:
            for topic in asking.request(CREATE, CreateTopicsRequest(topics=wanted)).topics:
                if topic.error_code:
                    raise LoadError(f"cannot create {topic.name}: {topic.error_message}")
        for number, name in enumerate(names):
            self._wait_for(self.port_of(number), name)
        return names

    def start(self) -> None:
        """Start it, and wait until every worker knows of the others."""
        self.server.start()
        for port in self.own_ports or [self.server.port]:
            self._wait_for(port)

    def _wait_for(self, port: int, name: str | None = None) -> None:
        """Wait until the broker at a port lists all workers, and a topic."""
        limit = time.monotonic() + VISIBLE_S
        with closing(ClientConnection("127.0.0.1", port)) as asking:
            while time.monotonic() < limit:
                found = asking.request(METADATA, MetadataRequest(topics=None))
                named = {topic.name for topic in found.topics} | {None}
                if len(found.brokers) == self.workers and name in named:
                    return
                time.sleep(0.01)
        raise LoadError(f"the broker at port {port} does not know of all within {VISIBLE_S:.0f} s")

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics."""
        states = [DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=states, topic_names=list(names))
        with closing(ClientConnection("127.0.0.1", self.server.port)) as asking:
            asking.request(DELETE, request)

    def run(self, row: Row, seconds: float) -> Figures:
        """Load it once."""
        names = self.topics()
        try:
            if row.fill is not None:
                self._load(row.fill, names, seconds=60.0, warmup=0.0)
                self.server.settle()
            results = self._load(row.job, names, seconds, WARMUP_S)
        finally:
            self.delete(names)
        requests = sum(result.requests for result in results)
        # Both clients measured in the same window; the first read the time of all processes.
        return Figures(requests / results[0].server_cpu_s, sum(each.requests_s for each in results))

    def _load(
        self, job: Job, names: Sequence[str], seconds: float, warmup: float
    ) -> list[JobResult]:
        def one(number: int) -> JobResult:
            mine = Job(job.mode, {**job.options, "topic": names[number]})
            options = {"port": self.port_of(number), "seconds": seconds, "warmup": warmup}
            (found,) = client.run([mine], {**options, "server_pid": self.server.pid})
            if found.errors:
                raise LoadError(f"{job.mode}: {found.error}")
            return found

        with ThreadPoolExecutor(CLIENTS) as pool:
            return list(pool.map(one, range(CLIENTS)))


def measured(row: Row, rounds: int, seconds: float, folder: Path) -> list[str]:
    """The line of a row: both brokers run, one is loaded at a time."""
    sides = [Side(workers, folder / str(workers), row.durable) for workers in (1, 2)]
    pairs: list[tuple[Figures, Figures]] = []
    try:
        for side in sides:
            side.start()
            side.run(row, seconds)
        for number in range(rounds):
            order = sides if number % 2 else sides[::-1]
            found = {side.workers: side.run(row, seconds) for side in order}
            pairs.append((found[1], found[2]))
    finally:
        for side in sides:
            side.server.discard()
    costs = sorted(two.per_cpu_s / one.per_cpu_s for one, two in pairs)
    rates = [two.per_s / one.per_s for one, two in pairs]
    figures = [
        median(one.per_cpu_s for one, _ in pairs), median(two.per_cpu_s for _, two in pairs),
        median(costs), costs[0], costs[-1],
        median(one.per_s for one, _ in pairs), median(two.per_s for _, two in pairs),
        median(rates),
    ]  # fmt: skip
    return [row.name, *map(report.number, figures)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rows", default="", help="only rows with this word")
    args = parser.parse_args()
    client.build()
    lines = []
    with tempfile.TemporaryDirectory(prefix="kafkawire-workers-") as folder:
        for number, row in enumerate(row for row in ROWS if args.rows in row.name):
            lines.append(measured(row, args.rounds, args.seconds, Path(folder, str(number))))
    cores = len(os.sched_getaffinity(0))
    report.show(f"two workers compared with one, {cores} cores, {args.rounds} rounds", HEAD, lines)


if __name__ == "__main__":
    main()
