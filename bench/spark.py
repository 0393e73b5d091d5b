"""Topics to Parquet on Spark: ours compared with Spark's own connector, on the same topics,
alternately.

`python -m bench.spark [--records 2000000,20000000] [--bytes 100,1000] [--codecs none,zstd]
[--parquet snappy] [--rounds 3] [--minio]` starts a broker, fills a topic, waits until all of it is
in segments, and lets these ways read it in each round: the connector and Spark's Parquet writer;
our data source and Spark's writer, as a batch and by Structured Streaming's checkpoint with
`foreachBatch`; a run of the pipeline from the data folder; with --minio one from the bucket. The
files have the same codec, Spark's own default. Two Spark sessions of the same settings (local[2])
are warmed once by a small topic. Each result is checked: every offset of every partition once.
Seconds are medians of the rounds, the ratio is the median of the rounds' ratios; memory is the peak
of the session's processes together (PSS). Needs the `spark` extra, Java 17, and the connector's
jars. A table, and `out/spark.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.dataset as ds

from bench import report
from bench.server import Recipe, Server
from bench.spark_fill import PARTITIONS, Topic, fill
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.model.source import Source

WAYS = {
    "connector": ("connector", "parquet"),
    "data source": ("ours", "parquet"),
    "foreachBatch": ("ours", "stream"),
    "pipeline": ("ours", "pipeline"),
    "pipeline, S3": ("ours", "pipeline"),
    "connector, count": ("connector", "count"),
    "data source, count": ("ours", "count"),
}
"""Name -> its session, its job."""
BASES = {"connector, count": "connector, count", "data source, count": "connector, count"}
"""The baseline of a way, where that is not the connector writing Parquet."""
CUT_WITHIN_S = 300
SAMPLE_S = 0.2
"""Memory is measured in a round of its own: adding up the pages of a JVM uses much CPU time."""


@dataclass
class Row:
    """One topic by one way: seconds of each round, peak bytes, the broker's CPU in it."""

    topic: Topic
    way: str
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    broker_cpu_s: float = 0.0

    @property
    def median_s(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.seconds)


class Session:
    """A child with a Spark session; see bench.spark_job."""

    def __init__(self, kind: str, environ: dict[str, str] | None = None) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "bench.spark_job", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        text = self.child.stdout.readline()
        if not text:
            raise RuntimeError(f"the session ended with {self.child.wait()}")
        found: dict[str, Any] = json.loads(text)
        return found

    def run(self, job: dict[str, str]) -> tuple[float, int]:
        """Seconds, rows (-1: count them in the files)."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"{job['do']} of {job['topic']}: {answer['error']}")
        return answer["seconds"], answer["rows"]

    def close(self) -> None:
        """End the session."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()


@contextlib.contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """The peak memory of a process and its descendants, with shared pages divided among them."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            total = 0
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(pid)
                for one in [root, *root.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        total += one.memory_full_info().pss
            peak[0] = max(peak[0], total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def check(folder: Path, topic: Topic) -> None:
    """Check that every offset of every partition is there once. RuntimeError."""
    columns = ("partition", "offset")
    names = ds.dataset(folder, format="parquet").schema.names
    chosen = [c if c in names else f"_{c}" for c in columns]
    table = ds.dataset(folder, format="parquet").to_table(columns=chosen)
    partitions, offsets = (table[name].to_numpy() for name in chosen)
    total = 0
    for index in range(PARTITIONS):
        own = np.sort(offsets[partitions == index])
        if not np.array_equal(own, np.arange(len(own))):
            raise RuntimeError(f"partition {index} of {folder} has gaps or repeats")
        total += len(own)
    if total != topic.records:
        raise RuntimeError(f"{folder} has {total} rows of {topic.records}")


def broker(folder: Path, tier: str) -> Server:
    """A broker that cuts its journals soon, and uploads soon as well."""
    settings = ["flush=os", "journal.roll.ms=2000", "tiering.max.lag.ms=5000"]

    def command(port: int, data: Path) -> Sequence[str]:
        words = [sys.executable, "-P", "-m", "kafkawire", "serve", "--data", str(data)]
        words += ["--listen", f"127.0.0.1:{port}", "--log-level", "warning"]
        words += ["--tier", tier] if tier else []
        return [*words, *(word for each in settings for word in ("--set", each))]

    server = Server(Recipe("kafkawire", command), folder, {0, 1})
    server.start()
    return server


def wait_until_cut(source: str, topic: Topic) -> None:
    """Wait until segments at `source` hold all of the topic."""
    began = time.monotonic()
    while time.monotonic() - began < CUT_WITHIN_S:
        with contextlib.suppress(Exception):  # no manifest yet, no such topic yet
            catalog = open_catalog(Source(url=source))
            ends = [catalog.bounds(topic.name, index).end for index in range(PARTITIONS)]
            if sum(ends) == topic.records:
                return
        time.sleep(0.5)
    raise RuntimeError(f"{topic.name} is not all in segments after {CUT_WITHIN_S} s")


@contextlib.contextmanager
def bucket(folder: Path, wanted: bool) -> Iterator[str]:
    """The URL of a tier in a MinIO of our own, or ""; child processes find its settings in the
    environment."""
    if not wanted:
        yield ""
        return
    from tests.kit import minio

    with minio.running(folder) as server:
        os.environ.update(server.environ)
        yield "s3://bench/tier"


class Bench:
    """The broker, the sessions and their results."""

    def __init__(self, folder: Path, tier: str, options: argparse.Namespace) -> None:
        self.folder, self.tier, self.rounds = folder, tier, options.rounds
        self.memory: bool = options.memory
        self.compression: str = options.parquet
        words = [word for word in options.ways.split(",") if word]
        chosen = [way for way in WAYS if not words or any(word in way for word in words)]
        needed = {BASES.get(way, "connector") for way in chosen}
        ways = [way for way in WAYS if way in chosen or way in needed]
        self.ways = [way for way in ways if tier or "S3" not in way]
        self.server = broker(folder / "data", tier)
        self.sessions = {kind: Session(kind) for kind in ("connector", "ours")}
        self.rows: list[Row] = []

    def close(self) -> None:
        """End everything that was started."""
        for session in self.sessions.values():
            session.close()
        self.server.discard()

    def once(self, topic: Topic, way: str) -> tuple[float, float]:
        """Run once; return seconds and the broker's CPU seconds; the result is checked."""
        kind, do = WAYS[way]
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        source = self.tier if "S3" in way else str(self.folder / "data")
        job = {
            "do": do, "source": source, "bootstrap": f"127.0.0.1:{self.server.port}",
            "topic": topic.name, "out": str(out), "compression": self.compression,
        }  # fmt: skip
        before = self.server.cpu_s()
        seconds, rows = self.sessions[kind].run(job)
        cpu_s = self.server.cpu_s() - before
        if rows == -1:
            check(out, topic)
        elif rows != topic.records:
            raise RuntimeError(f"{way}: {rows} rows of {topic.records}")
        return seconds, cpu_s

    def measure(self, topic: Topic, step: report.Step) -> None:
        """Run all rounds of one topic, then delete it."""
        self.prepare(topic)
        rows = [Row(topic, way) for way in self.ways]
        for _ in range(self.rounds):
            for row in rows:
                step(f"{topic.label}: {row.way}", False)
                seconds, cpu_s = self.once(topic, row.way)
                row.seconds.append(seconds)
                row.broker_cpu_s = max(row.broker_cpu_s, cpu_s)
                step(f"{topic.label}: {row.way} {seconds:.2f} s", True)
        for row in rows if self.memory else []:
            with peak_memory(self.sessions[WAYS[row.way][0]].child.pid) as peak:
                self.once(topic, row.way)
            row.peak_bytes = peak[0]
        self.rows += rows
        self.remove(topic)

    def prepare(self, topic: Topic) -> None:
        """Fill it and wait for segments."""
        fill(self.server.port, topic)
        wait_until_cut(str(self.folder / "data"), topic)
        if self.tier:
            wait_until_cut(self.tier, topic)

    def remove(self, topic: Topic) -> None:
        """Delete the topic, because its disk space is needed."""
        from bench.admin import Admin

        with Admin(self.server.port) as admin:
            admin.delete_topic(topic.name)
        shutil.rmtree(self.folder / "out", ignore_errors=True)

    def ratio(self, row: Row) -> float:
        """How many times as fast as its baseline: median of the rounds."""
        name = BASES.get(row.way, "connector")
        base = next(r for r in self.rows if r.topic == row.topic and r.way == name)
        pairs = zip(base.seconds, row.seconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


HEAD = ("topic", "way", "s", "M records/s", "ratio", "peak MB", "broker CPU s")


def table(bench: Bench) -> list[list[str]]:
    """The table for readers."""
    return [
        [
            row.topic.label,
            row.way,
            f"{row.median_s:.2f}",
            f"{row.topic.records / row.median_s / 1e6:.2f}",
            f"{bench.ratio(row):.2f}",
            f"{row.peak_bytes / 1e6:,.0f}" if row.peak_bytes else "",
            f"{row.broker_cpu_s:.2f}",
        ]
        for row in bench.rows
    ]


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench.spark", description=(__doc__ or "")[:90])
    parser.add_argument("--records", default="2000000,20000000")
    parser.add_argument("--bytes", default="100,1000")
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--parquet", default="snappy", help="codec of the files, of both sides")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="", help="only ways that have one of these words")
    parser.add_argument("--memory", action="store_true", help="a round more, for peak memory")
    parser.add_argument("--minio", action="store_true", help="from a bucket too")
    parser.add_argument("--data", type=Path, help="folder for everything; removed in the end")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> None:
    """Measure, print, store."""
    options = arguments(given)
    topics = [
        Topic(int(records), int(size), codec)
        for records in options.records.split(",")
        for size in options.bytes.split(",")
        for codec in options.codecs.split(",")
    ]
    with tempfile.TemporaryDirectory(dir=options.data) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        tier = stack.enter_context(bucket(folder / "minio", options.minio))
        bench = Bench(folder, tier, options)
        try:
            small = Topic(99_000, 100, "none")
            bench.prepare(small)
            for way in bench.ways * 2:
                bench.once(small, way)
            with report.progress(len(topics) * len(bench.ways) * options.rounds) as step:
                for topic in topics:
                    bench.measure(topic, step)
            report.show("Topic to Parquet, two cores", HEAD, table(bench))
            found = [
                {"topic": r.topic.label, "way": r.way, "seconds": r.seconds,
                 "ratio": bench.ratio(r), "peak_bytes": r.peak_bytes,
                 "broker_cpu_s": r.broker_cpu_s}
                for r in bench.rows
            ]  # fmt: skip
            report.write_json("spark.json", {"machine": report.machine(), "rows": found})
        finally:
            bench.close()


if __name__ == "__main__":
    main(sys.argv[1:])
