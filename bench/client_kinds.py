"""The real clients of bench.clients: the settings of each, and how it is run and its output read.

The Java tools print what they measured; the Python libraries run in bench.client_jobs. The number
of records for a client is what it handles in about two seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench.client import BENCH
from bench.peer_recipes import java, tools_jar
from bench.server import Server

RUN_LIMIT_S = 120
SIZES = (100, 1000)
TOOLS = "org.apache.kafka.tools"
TOOL_JVM = ("-Xmx512m", "-server", "-XX:+UseG1GC", "-Djava.awt.headless=true")
SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


class ClientError(Exception):
    """A client failed, or did not complete its job."""


@dataclass(frozen=True, slots=True)
class Work:
    """One job: produce or consume `records` of `size` bytes; `acks` is 1 or "all"."""

    job: str
    size: int
    records: int
    acks: int | str = 1

    @property
    def name(self) -> str:
        """The name in the table."""
        size = "1 KB" if self.size == 1000 else f"{self.size} B"
        return f"consume {size}" if self.job == "consume" else f"produce {size} acks={self.acks}"

    @property
    def order(self) -> tuple[bool, int, str]:
        """Producing first, small first."""
        return self.job == "consume", self.size, str(self.acks)


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one run; the broker's CPU time counts from the client's start to its
    end."""

    records: int
    seconds: float
    broker_cpu_s: float

    @property
    def records_s(self) -> float:
        """Records a second, measured by the client."""
        return self.records / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """CPU seconds of the broker for a million records."""
        return self.broker_cpu_s / self.records * 1e6

    def as_json(self) -> dict[str, object]:
        """For the JSON file."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Kind:
    """A client: its command line for a job, and how to parse records and seconds from its
    output."""

    name: str
    counts: tuple[int, int]  # records to produce, of each of SIZES
    read_counts: tuple[int, int]  # and to consume
    command: Callable[[Work, int, str], list[str]]  # work, port, topic
    read: Callable[[Work, str], tuple[int, float]]
    missing: Callable[[], str]  # why it can't run here, or nothing
    version: Callable[[], str]


def java_command(work: Work, port: int, topic: str) -> list[str]:
    """ProducerPerformance or ConsumerPerformance."""
    words = ["--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic]
    words += ["--num-records", str(work.records)]
    if work.job == "consume":
        words += ["--hide-header", "--timeout", "60000"]
        return java(f"{TOOLS}.ConsumerPerformance", *words, options=TOOL_JVM)
    words += ["--throughput", "-1", "--record-size", str(work.size)]
    words += ["--command-property", f"acks={work.acks}"]
    return java(f"{TOOLS}.ProducerPerformance", *words, options=TOOL_JVM)


def java_read(work: Work, output: str) -> tuple[int, float]:
    """Parse the last line; for a consumer the time spent fetching, without joining its group."""
    if work.job == "consume":
        words = [word.strip() for word in output.strip().splitlines()[-1].split(",")]
        return int(words[4]), int(words[7]) / 1000
    found = SENT.findall(output)[-1]
    return int(found[0]), int(found[0]) / float(found[1])


def java_missing() -> str:
    """Whether Java or Kafka's jars are missing."""
    if shutil.which("java") is None:
        return "it needs java"
    return "" if tools_jar() else "its jars come with the Kafka of `make bench-peers`"


def java_version() -> str:
    """The version of Kafka's tools."""
    jar = tools_jar()
    return jar.stem.removeprefix("kafka-tools-") if jar else ""


def python_kind(
    name: str, module: str, counts: tuple[int, int], read_counts: tuple[int, int]
) -> Kind:
    """A library that bench.client_jobs knows by its module."""

    def command(work: Work, port: int, topic: str) -> list[str]:
        words = [module, work.job, str(port), topic, str(work.records), str(work.size)]
        return [sys.executable, "-m", "bench.client_jobs", *words, str(work.acks)]

    def read(work: Work, output: str) -> tuple[int, float]:
        found = json.loads(output.strip().splitlines()[-1])
        return int(found["records"]), float(found["seconds"])

    def missing() -> str:
        return "" if importlib.util.find_spec(module) else f"{module} is not installed"

    distribution = {"kafka": "kafka-python", "confluent_kafka": "confluent-kafka"}

    def version() -> str:
        return importlib.metadata.version(distribution.get(module, module))

    return Kind(name, counts, read_counts, command, read, missing, version)


JAVA = Kind(
    "Java",
    (1_500_000, 500_000),
    (2_000_000, 500_000),
    java_command,
    java_read,
    java_missing,
    java_version,
)
KINDS = (
    JAVA,
    python_kind("librdkafka", "confluent_kafka", (800_000, 300_000), (1_500_000, 400_000)),
    python_kind("kafka-python", "kafka", (60_000, 40_000), (200_000, 100_000)),
    python_kind("aiokafka", "aiokafka", (80_000, 50_000), (200_000, 100_000)),
)


def works(kind: Kind, share: float = 1.0) -> list[Work]:
    """All jobs of a client; `share` of the usual records."""
    found = []
    for size, count, read_count in zip(SIZES, kind.counts, kind.read_counts, strict=True):
        found += [Work("produce", size, int(count * share), acks) for acks in (1, "all")]
        found.append(Work("consume", size, int(read_count * share)))
    return found


def run_work(server: Server, kind: Kind, work: Work, topic: str, core: int) -> Run:
    """One run, the client pinned to `core`; ClientError when it fails."""
    command = kind.command(work, server.port, topic)
    before_s = server.cpu_s()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=BENCH.parent,
            timeout=RUN_LIMIT_S,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    except subprocess.TimeoutExpired:
        raise ClientError(f"no end after {RUN_LIMIT_S} s") from None
    spent_s = server.cpu_s() - before_s
    if done.returncode:
        raise ClientError(last_line(done.stderr or done.stdout))
    try:
        records, seconds = kind.read(work, done.stdout)
    except (IndexError, ValueError, KeyError):
        raise ClientError(f"it says: {last_line(done.stdout + done.stderr)}") from None
    if records < work.records or seconds <= 0:
        raise ClientError(f"{records} of {work.records} records in {seconds} s")
    return Run(records, seconds, spent_s)


def last_line(text: str) -> str:
    """The last line of a program's output."""
    lines: Sequence[str] = text.strip().splitlines()
    return lines[-1] if lines else "nothing was said"
