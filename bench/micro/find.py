"""`python -m bench.micro.find`: one key among many segments: seconds, CPU time, requests, bytes.

Reads with `kafkawire.reading` in this process. A topic of `--segments` segments with a thousand
unique keys each (100-byte values, zstd, batches of a hundred) is a tier's folder, and a bucket in
MinIO, without delay and through a proxy that answers `--delay` ms later (bench.far_s3). `absent`: a
key that is nowhere; `old`: one of the first segment; `recent`: one of the last; `by time`: the
records of one second in the middle.

The compacted topic has 300,000 keys in ten segments; `--latest` is measured often, after the first
time.

`--sources broker` is a running broker with the records of the first topic in its journals, recent
ones in memory, and then its data folder.

`--index`: without an index of keys (`none`) a search for a key reads everything in its range; with
one (`keys`) it reads one filter a segment; `packs` of 64 segments have the filters of all but the
last 40. The compacted topic has none. Prints Markdown tables;
least of the rounds. Opening a source, which reads its manifest, is a row of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.admin import Admin
from bench.far_s3 import far
from bench.payload import line
from bench.server import Server, kafkawire
from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import append
from kafkawire.codec.batches import Record, pack
from kafkawire.reading import TopicReader, TopicRecord, open_broker, open_bucket, open_folder
from kafkawire.reading.files.open import open_place
from tests.kit.minio import running
from tests.kit.spark.files import Files, Share
from tests.kit.spark.key_index import put, put_packs

URL = "s3://find/tier"
ORDERS, TABLE = "orders", "table"
IN_SEGMENT, IN_BATCH, VALUE_BYTES, ZSTD = 1000, 100, 100, 4
TABLE_SEGMENTS, IN_TABLE_SEGMENT = 10, 30_000
START_MS = 1_700_000_000_000
IN_PACK, UNPACKED = 64, 40
REPEATED = 20
MBPS = 50.0
"""Of a connection, as a remote bucket provides."""


Sources = dict[str, Callable[[], TopicReader]]


class Figure(NamedTuple):
    """Time, CPU time, requests and bytes of one operation."""

    seconds: float
    cpu_s: float
    requests: int
    size_bytes: int


def key(number: int) -> bytes:
    """The key of a record."""
    return b"order-%d" % number


def batches(first: int, count: int, now_ms: int = START_MS) -> Iterator[bytes]:
    """Batches of records with the offsets and keys from `first` on, a record each millisecond."""
    chance = random.Random(first)
    for base in range(first, first + count, IN_BATCH):
        rows = [
            Record(at, now_ms + at, key(at), line(chance, VALUE_BYTES))
            for at in range(base, base + IN_BATCH)
        ]
        yield bytes(pack(rows, codec=ZSTD))


def fill(url: str, segments: int, index: str) -> None:
    """Make both topics. `index`: "none", "keys", or "packs" of all segments but the last 40."""
    files = Files(open_place(url))
    [orders], [table] = files.topic(ORDERS), files.topic(TABLE, cleanup_policy="compact")
    for name in range(segments):
        share = Share(orders, list(batches(name * IN_SEGMENT, IN_SEGMENT)))
        if index == "none":
            files.put(name + 1, share)
        else:
            put(files, name + 1, share)
    if index == "packs":
        uuids = [(name + 1).to_bytes(16, "big") for name in range(segments - UNPACKED)]
        groups = [uuids[at : at + IN_PACK] for at in range(0, len(uuids), IN_PACK)]
        put_packs(files.place, *groups)
    for name in range(TABLE_SEGMENTS):
        share = Share(table, list(batches(name * IN_TABLE_SEGMENT, IN_TABLE_SEGMENT)))
        files.put(segments + name + 1, share)
    files.publish()


def cost(reader: TopicReader) -> tuple[int, int]:
    """Requests and bytes since the source was opened."""
    rows = reader.traffic()
    return sum(each.requests for each in rows), sum(each.size_bytes for each in rows)


def timed(reader: TopicReader, work: Callable[[], object]) -> Figure:
    """Measure one operation of a reader."""
    requests, size = cost(reader)
    began, worked = time.perf_counter(), time.process_time()
    work()
    took = time.perf_counter() - began, time.process_time() - worked
    after = cost(reader)
    return Figure(*took, after[0] - requests, after[1] - size)


def found(records: Iterator[TopicRecord], wanted: int) -> None:
    """Read all records, which must be so many."""
    assert sum(1 for _ in records) == wanted


def last(reader: TopicReader, topic: str, number: int) -> None:
    """Find the last record with a key, which exists."""
    record = reader.latest(topic, key(number))
    assert record is not None
    assert record.key == key(number)


def operations(reader: TopicReader, count: int, since_ms: int) -> dict[str, Callable[[], None]]:
    """Return what is measured on the first topic, which has so many records."""
    middle = since_ms + count // 2
    return {
        "absent": lambda: found(reader.find(ORDERS, b"absent"), 0),
        "old": lambda: found(reader.find(ORDERS, key(7)), 1),
        "recent, `--latest`": lambda: last(reader, ORDERS, count - 500),
        "old, `--latest`": lambda: last(reader, ORDERS, 7),
        "by time": lambda: found(reader.read(ORDERS, since=middle, until=middle + 1000), 1000),
    }


def measure(name: str, opening: Callable[[], TopicReader], count: int, rounds: int) -> None:
    """Print the rows of one source."""
    rows: dict[str, list[Figure]] = {}
    for _ in range(rounds):
        began, worked = time.perf_counter(), time.process_time()
        with opening() as reader:
            reader.partitions(ORDERS)
            took = time.perf_counter() - began, time.process_time() - worked
            rows.setdefault("open", []).append(Figure(*took, *cost(reader)))
            for what, work in operations(reader, count, START_MS).items():
                rows.setdefault(what, []).append(timed(reader, work))
    for what, figures in rows.items():
        show(name, what, min(figures))


def show(name: str, what: str, best: Figure) -> None:
    """Print one row."""
    print(
        f"| {name} | {what} | {best.seconds:.3f} | {best.cpu_s:.3f} | {best.requests} "
        f"| {best.size_bytes / 1e6:.2f} |",
        flush=True,
    )


def measure_table(name: str, opening: Callable[[], TopicReader], repeated: int) -> None:
    """Print the rows of the compacted topic: the first time, and the median of many."""
    end = TABLE_SEGMENTS * IN_TABLE_SEGMENT
    with opening() as reader:
        reader.partitions(TABLE)
        for what, first in (
            ("in the last 1,000", end - 1000),
            ("10,000 before the end", end - 10_000),
        ):
            figures = [
                timed(reader, lambda number=first + at: last(reader, TABLE, number))  # type: ignore[misc]
                for at in range(repeated)
            ]
            best = figures[0]
            print(
                f"| {name} | {what} | {best.seconds * 1000:.1f} "
                f"| {median(each.seconds for each in figures) * 1000:.1f} | {best.requests} "
                f"| {median(each.requests for each in figures):g} | {best.size_bytes / 1e6:.2f} |",
                flush=True,
            )


def fill_broker(server: Server, count: int) -> None:
    """Append the records of the first topic, which stay in the journals."""
    with Admin(server.port) as admin:
        admin.create_topic(ORDERS, 1, {"retention.ms": "-1", "retention.bytes": "-1"})
    partition = (ORDERS, 0)
    with Cluster(f"127.0.0.1:{server.port}") as cluster:
        node = leaders(cluster, [ORDERS])[partition]
        for batch in batches(0, count):
            sent = bytes(8) + batch[8:]  # the broker assigns offsets
            result = append(cluster, node, {partition: sent}, acks=1)[partition]
            assert not result.code, result.message


def measure_broker(folder: Path, count: int, rounds: int) -> None:
    """Print the rows of a running broker."""
    server = Server(kafkawire(), folder, set(range(os.cpu_count() or 1)))
    try:
        server.start()
        fill_broker(server, count)
        measure(
            "journals, by the broker",
            lambda: open_broker(f"127.0.0.1:{server.port}"),
            count,
            rounds,
        )
        server.stop()
        measure("journals, broker stopped", lambda: open_folder(str(folder)), count, rounds)
    finally:
        server.discard()


def sources(chosen: Sequence[str], stack: ExitStack, options: argparse.Namespace) -> Sources:
    """Make the topics in a folder and in MinIO; return how the chosen ones are opened."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    found: Sources = {}
    if "folder" in chosen:
        fill(str(folder / "tier"), options.segments, options.index)
        found["folder"] = lambda: open_bucket(str(folder / "tier"))
    if "minio" in chosen or "far" in chosen:
        server = stack.enter_context(running(folder / "minio"))
        os.environ.update(server.environ)
        server.client().create_bucket(Bucket=urlsplit(URL).netloc)
        fill(URL, options.segments, options.index)
        endpoint = stack.enter_context(far(server.endpoint, options.delay, MBPS))
        if "minio" in chosen:
            found["MinIO"] = lambda: open_bucket(f"{URL}?endpoint={server.endpoint}")
        if "far" in chosen:
            name = f"{options.delay:g} ms a request"
            found[name] = lambda: open_bucket(f"{URL}?endpoint={endpoint}")
    return found


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=20.0, help="milliseconds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--index", choices=("none", "keys", "packs"), default="packs")
    parser.add_argument("--sources", default="folder,minio,far", help="and broker")
    options = parser.parse_args()
    chosen = options.sources.split(",")
    count = options.segments * IN_SEGMENT
    with ExitStack() as stack:
        found = sources(chosen, stack, options)
        print(f"{count:,} records in {options.segments} segments\n")
        print("| source | key | s | CPU s | requests | MB |\n|---|---|--:|--:|--:|--:|")
        for name, opening in found.items():
            measure(name, opening, count, options.rounds)
        if "broker" in chosen:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            measure_broker(folder, count, options.rounds)
        if not found:
            return
        print("\n| source | `--latest` of a key | first ms | median ms | requests | then | MB |")
        print("|---|---|--:|--:|--:|--:|--:|")
        for name, opening in found.items():
            measure_table(name, opening, REPEATED)


if __name__ == "__main__":
    main()
