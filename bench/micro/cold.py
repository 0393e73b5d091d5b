"""Cold reads: their cost for concurrent traffic, their throughput, their latency to the first byte.

`python -m bench.micro.cold [--seconds S] [--rounds N] [--megabytes M] [--minio]`. A broker with a
remote tier is filled with eight topics that are read from there (`tieredStorageLevel=force`), and
one that is hot. Then, alternately with and without eight clients that read the cold topics as fast
as they can: p99 of paced produces and of paced hot fetches. Broker on one core, clients on the
other, the readers of cold data in a process of lower priority.

Without --minio the tier is a folder whose requests take 30 ms more (bench.waiting_broker), and the
first byte of a cold fetch is counted in round trips: each takes 200 ms for that. With it the tier
is MinIO next to the clients, and the rate of cold fetches is compared with plain parallel ranged
GETs of the same objects by boto3. Bounded: the cold topics take M megabytes each (48).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench import client, report
from bench.admin import Admin
from bench.client import Job
from bench.server import Server, kafkawire
from kafkawire.codec.compile import decode, encode
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

READERS = 8
WAIT_MS = 30
FIRST_BYTE_WAIT_MS = 200
LARGE_MB = 2400
"""The topic that is read for its rate: far larger than the cache and than a round reads, since at
its end the reader starts again from the beginning, at first without read-ahead."""
TIERED_WITHIN_S = 120.0
ROOT = Path(__file__).parent.parent.parent
SERVER_CORE, CLIENT_CORE = 0, 1
COLD = {
    "tieredStorageLevel": "force",
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": str(1 << 20),
    "segment.bytes": str(64 << 20),
}
SETTINGS = ("hot.bytes=1048576", "journal.bytes=67108864", "cut.interval.ms=200")
BATCH = {"record_bytes": 1000, "records": 64}
PRODUCES = Job("produce", {"topic": "paced", "connections": 4, "rate": 400, "record_bytes": 1000})
FETCHES = Job(
    "fetch",
    {"topic": "hot", "connections": 4, "rate": 400, "max_bytes": 65536,
     "partition_max_bytes": 65536},
)  # fmt: skip
HEAD = (
    "",
    "alone p50 us",
    "p99 us",
    "with readers p50 us",
    "p99 us",
    "p99 ratio",
    "min",
    "max",
)


def serve(folder: Path, tier: str, wait_ms: int, cores: set[int], env: dict[str, str]) -> Server:
    """A broker with a remote tier; `wait_ms` 0: without added delay."""
    recipe = kafkawire()

    def command(port: int, data: Path) -> list[str]:
        words = list(recipe.command(port, data))
        if wait_ms:
            at = words.index("kafkawire")
            words[at : at + 1] = ["bench.waiting_broker", str(wait_ms)]
        words += ["--tier", tier]
        return words + [word for setting in SETTINGS for word in ("--set", setting)]

    more = {"PYTHONPATH": str(ROOT), **env}
    return Server(replace(recipe, command=command, env=more), folder, cores)


def ask(admin: Admin, key: int, version: int, request: object, answer: type) -> object:
    """A request of the project's own codec; versions with flexible headers."""
    body = b"\0" + bytes(encode(request, version))
    reader = admin.call(key, version, body)
    return decode(answer, version, memoryview(reader.data)[reader.pos + 1 :])


def offset_of(admin: Admin, topic: str, timestamp: int) -> int:
    """The offset that ListOffsets returns for the first partition."""
    rows = [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, timestamp)])]
    found = ask(admin, 2, 9, ListOffsetsRequest(-1, topics=rows), ListOffsetsResponse)
    assert isinstance(found, ListOffsetsResponse)
    return int(found.topics[0].partitions[0].offset)


def fill(server: Server, megabytes: int, last: int) -> None:
    """Create the topics, the last one of another size; wait until the cold ones are in the tier."""
    cold = [f"cold{n}" for n in range(READERS + 1)]
    with Admin(server.port) as admin:
        for name in cold:
            admin.create_topic(name, 1, COLD)
        for name in ("hot", "paced"):
            admin.create_topic(name, 1, {"remote.storage.enable": "false"})
        jobs = [fill_job(name, megabytes) for name in cold[:-1]] + [fill_job(cold[-1], last)]
        for job in jobs:
            client.run([job], {"port": server.port, "seconds": 60, "client_core": CLIENT_CORE})
        began = time.monotonic()
        for name in cold:
            # Records left in the journals at the end are cut when they are as old as the lag
            # allows.
            while (left := offset_of(admin, name, -1) - 1 - offset_of(admin, name, -5)) > 0:
                if time.monotonic() - began > TIERED_WITHIN_S:
                    raise RuntimeError(
                        f"{left} records of {name} are not in the tier\n{server.tail()}"
                    )
                time.sleep(0.2)
    client.run(
        [fill_job("hot", 2)], {"port": server.port, "seconds": 10, "client_core": CLIENT_CORE}
    )


def fill_job(topic: str, megabytes: int) -> Job:
    """A job that writes this many megabytes."""
    options: dict[str, int | float | str] = {"topic": topic, "acks": -1, "inflight": 4}
    return Job("produce", {**options, **BATCH, "connections": 1, "bytes": megabytes * 1_000_000})


def reading(topic: str) -> Job:
    """One consumer that reads as fast as it can, with the defaults of Java's."""
    return Job("fetch", {"topic": topic, "connections": 1, "max_bytes": 52_428_800})


@contextmanager
def cold_readers(port: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A client process that reads the cold topics at lower priority than all others."""
    words = [str(client.build()), f"port={port}", f"seconds={seconds}", "spin=0"]
    for number in range(READERS):
        job = reading(f"cold{number}")
        words += ["+"] if number else []
        words += [job.mode, *client.words(job.options)]

    def yielding() -> None:
        os.sched_setaffinity(0, {CLIENT_CORE})
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, 15)

    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=yielding)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def measure(server: Server, seconds: float) -> list[client.JobResult]:
    """Latencies of produces and hot fetches."""
    options = {"port": server.port, "seconds": seconds, "warmup": 0.5, "spin": 0}
    return client.run([PRODUCES, FETCHES], {**options, "client_core": CLIENT_CORE})


def measure_with_cold_readers(
    server: Server, seconds: float
) -> tuple[list[client.JobResult], float]:
    """The same with concurrent cold readers, and their throughput in megabytes a second."""
    with cold_readers(server.port, seconds + 1.5) as process:
        time.sleep(0.5)
        found = measure(server, seconds)
        output, _ = process.communicate(timeout=60)
    rows = [client.JobResult(**json.loads(line)) for line in output.splitlines()]
    errors = [row.error for row in rows if row.error]
    if errors:
        raise RuntimeError(f"a cold reader: {errors[0]}")
    return found, sum(row.mb_s for row in rows)


def alone_on_core(server: Server) -> None:
    """Move the process that speaks to the storage to the other core, away from the broker."""
    for found in Path(f"/proc/{server.pid}/task").glob("*/children"):
        for child in found.read_text().split():
            os.sched_setaffinity(int(child), {CLIENT_CORE})


def before_others(server: Server) -> None:
    """Give the broker and this process, with the client it starts, real-time priority, which the
    storage's child and the cold readers do not get."""
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def isolation(server: Server, options: argparse.Namespace) -> list[list[str]]:
    """The table of latencies."""
    alone: list[list[client.JobResult]] = []
    with_them: list[list[client.JobResult]] = []
    rates = []
    alone_on_core(server)
    if options.first:
        before_others(server)
    for _ in range(options.rounds):
        alone.append(measure(server, options.seconds))
        found, rate = measure_with_cold_readers(server, options.seconds)
        with_them.append(found)
        rates.append(rate)
    rows = []
    for at, name in enumerate(("produce, acks=1", "hot fetch")):
        before = [run[at].latency_us for run in alone]
        after = [run[at].latency_us for run in with_them]
        ratios = sorted(b["p99"] / a["p99"] for a, b in zip(before, after, strict=True))
        figures = [
            median(one[key] for one in runs) for runs in (before, after) for key in ("p50", "p99")
        ]
        figures += [median(ratios), ratios[0], ratios[-1]]
        rows.append([name, *map(report.number, figures)])
    print(f"cold readers together: {median(rates):.0f} MB/s")
    return rows


def first_bytes(server: Server, wait_ms: int) -> list[float]:
    """How many round trips the first byte of a cold fetch takes, at random offsets of one topic.

    Only the first of them needs the index too.
    """
    trips = []
    with Admin(server.port) as admin:
        end = offset_of(admin, f"cold{READERS}", -1)
        rng = random.Random(1)
        for _ in range(5):
            rows = [FetchPartition(0, fetch_offset=rng.randrange(end), partition_max_bytes=65536)]
            topics = [FetchTopic(f"cold{READERS}", partitions=rows)]
            request = FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=65536, topics=topics)
            began, size = time.monotonic(), 0
            while not size:
                answer = ask(admin, 1, 12, request, FetchResponse)
                assert isinstance(answer, FetchResponse)
                size = len(answer.responses[0].partitions[0].records or b"")
            trips.append((time.monotonic() - began) * 1000 / wait_ms)
    return trips


def throughput(server: Server, seconds: float) -> float:
    """MB/s of one consumer of a cold topic, from its beginning."""
    job = reading(f"cold{READERS}")
    (found,) = client.run([job], {"port": server.port, "seconds": seconds, "spin": 0})
    if found.error:
        raise RuntimeError(found.error)
    return found.mb_s


def raw(url: str, environ: dict[str, str], seconds: float) -> float:
    """MB/s of plain ranged GETs of 8 MiB of the same objects, eight concurrently."""
    words = [sys.executable, "-m", "bench.raw_gets", url, str(seconds)]
    done = subprocess.run(
        words, env={**os.environ, **environ}, cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench.micro.cold")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=48)
    parser.add_argument("--minio", action="store_true")
    parser.add_argument("--first", action="store_true", help="in real time (Linux, root)")
    parser.add_argument("--data", type=Path, default=client.OUT / "cold", help="folder, removed")
    return parser.parse_args(given)


def with_minio(options: argparse.Namespace) -> None:
    """Against MinIO: rates on both cores, and latencies with the broker alone on its core."""
    from tests.kit import minio

    with ExitStack() as stack:
        store = stack.enter_context(minio.running(options.data / "minio"))
        url = f"s3://bench-{os.getpid()}/tier"
        server = serve(options.data / "broker", url, 0, {SERVER_CORE, CLIENT_CORE}, store.environ)
        stack.callback(server.discard)
        server.start()
        fill(server, options.megabytes, LARGE_MB)
        ratios = []
        throughput(
            server, options.seconds
        )  # memory that was never touched costs more than the rest
        for _ in range(options.rounds):
            plain = raw(url, store.environ, options.seconds)
            ours = throughput(server, options.seconds)
            ratios.append(ours / plain)
            print(f"ranged GETs {plain:.0f} MB/s, cold fetch {ours:.0f} MB/s: {ratios[-1]:.2f}")
        print(f"median {median(ratios):.2f}")
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {SERVER_CORE})
        report.show("with eight cold readers", HEAD, isolation(server, options))


def with_delayed_storage(options: argparse.Namespace) -> None:
    """Against a storage that only waits."""
    for wait_ms in (FIRST_BYTE_WAIT_MS, WAIT_MS):
        tier = options.data / f"tier{wait_ms}"
        server = serve(options.data / "broker", str(tier), wait_ms, {SERVER_CORE}, {})
        try:
            server.start()
            fill(server, options.megabytes if wait_ms == WAIT_MS else 8, 8)
            if wait_ms == WAIT_MS:
                report.show("with eight cold readers", HEAD, isolation(server, options))
            else:
                trips = first_bytes(server, wait_ms)
                print("round trips of first bytes: " + " ".join(f"{n:.2f}" for n in trips))
        finally:
            server.discard()


def main(given: Sequence[str]) -> None:
    """Measure and print the tables."""
    options = arguments(given)
    shutil.rmtree(options.data, ignore_errors=True)
    options.data.mkdir(parents=True)
    try:
        if options.minio:
            with_minio(options)
        else:
            with_delayed_storage(options)
    finally:
        shutil.rmtree(options.data, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
