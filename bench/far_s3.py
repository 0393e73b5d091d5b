"""`python -m bench.far_s3`: the throughput of a Spark task reading from a remote bucket.

A tier is put into MinIO, and its tasks are read one after the other by one process, like a Spark
worker, through a proxy that delays each response and each new connection by some milliseconds and
limits a connection to MBPS megabytes a second. It alternates between one request in flight and
several (`--at-once 1,8`); 0 ms is MinIO itself, without the proxy. Prints a Markdown table: seconds
and CPU seconds of the reader, the least of the rounds, and ratios to the first. Planning is opening
a catalog with `--deltas` deltas, and splitting it; the least of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from bench.spark_fill import Topic, batches
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import PartitionRange, Source, Task
from kafkawire.reading.plan import plan_tasks
from kafkawire.reading.read_task import read_task
from tests.kit import minio
from tests.kit.proxy import Link
from tests.kit.spark.files import Files, Share

SEGMENTS = 4
URL = "s3://far/tier"


async def _serve(endpoint: str, delay_ms: float, mbps: float, port_sender: Connection) -> None:
    """Serve until this process is ended; send the port through the pipe."""
    parts = urlsplit(endpoint)
    link = Link((parts.hostname or "", parts.port or 80), connect_s=delay_ms / 1000)
    link.delay(0.0, delay_ms / 1000)
    link.back.bytes_per_s = mbps * 1e6
    port_sender.send(await link.start())
    await link.serve_forever()


def _proxy(endpoint: str, delay_ms: float, mbps: float, port_sender: Connection) -> None:
    asyncio.run(_serve(endpoint, delay_ms, mbps, port_sender))


@contextmanager
def far(endpoint: str, delay_ms: float, mbps: float) -> Iterator[str]:
    """An endpoint with this latency; `endpoint` itself at 0 ms."""
    if not delay_ms:
        yield endpoint
        return
    spawned = multiprocessing.get_context("spawn")
    hear, port_sender = spawned.Pipe(duplex=False)
    process = spawned.Process(
        target=_proxy, args=(endpoint, delay_ms, mbps, port_sender), daemon=True
    )
    process.start()
    try:
        assert hear.poll(30), "the proxy does not start"
        yield f"http://127.0.0.1:{hear.recv()}"
    finally:
        process.kill()
        process.join()


def fill(megabytes: int, codec: str, deltas: int) -> None:
    """A topic of so many MB of values, 1 KB each, in segments of equal size."""
    topic = Topic(megabytes * 1000, 1000, codec)
    made = batches(topic, topic.records, 1)
    files = Files(open_place(URL))
    [number] = files.topic("t")
    at, each = 0, topic.records // topic.batch_records // SEGMENTS
    for name in range(SEGMENTS):
        found = []
        for one in islice(made, each):
            found.append(at.to_bytes(8, "big") + one[8:])  # the CRC does not cover its offset
            at += topic.batch_records
        files.put(name, Share(number, found))
        files.publish()
    files.rows.clear()
    for _ in range(deltas - SEGMENTS):
        files.publish(ends={number: at}, starts={number: 0})


def plan(endpoint: str) -> tuple[float, Source, list[Task]]:
    """Seconds to plan, and the tasks."""
    source = Source(f"{URL}?endpoint={endpoint}")
    list(open_place(source.url).list("nothing"))  # a client, and a connection
    began = time.perf_counter()
    catalog = open_catalog(source)
    start, _, end = catalog.bounds("t", 0)
    tasks = plan_tasks([catalog.part(PartitionRange("t", 0, start, end))])
    return time.perf_counter() - began, source, tasks


def read(source: Source, tasks: list[Task], at_once: int) -> tuple[float, float]:
    """Seconds and CPU seconds of all tasks."""
    places = [open_place(source.url)]
    source = replace(source, requests_at_once=at_once)
    began, worked = time.perf_counter(), time.process_time()
    rows = 0
    for task in tasks:
        for batch in read_task(source, places, task, Selection(("offset", "value"))):
            rows += batch.num_rows
    assert rows == sum(part.range.end - part.range.base for task in tasks for part in task.parts)
    return time.perf_counter() - began, time.process_time() - worked


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latencies", default="0,20,100", help="milliseconds")
    parser.add_argument("--at-once", default="1,8")
    parser.add_argument("--mbps", type=float, default=50)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--deltas", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ways = [int(word) for word in options.at_once.split(",")]
    with tempfile.TemporaryDirectory() as folder, minio.running(Path(folder)) as server:
        os.environ.update(server.environ)
        server.client().create_bucket(Bucket=urlsplit(URL).netloc)
        fill(options.megabytes, options.codec, options.deltas)
        print("| ms | at once | s | ratio | CPU s | MB/s | planning s |")
        print("|--:|--:|--:|--:|--:|--:|--:|")
        for delay_ms in map(float, options.latencies.split(",")):
            with far(server.endpoint, delay_ms, options.mbps) as endpoint:
                found: dict[int, list[tuple[float, float]]] = {way: [] for way in ways}
                planned = float("inf")
                for _ in range(options.rounds):
                    took, source, tasks = plan(endpoint)
                    planned = min(planned, took)
                    for way in ways:
                        found[way].append(read(source, tasks, way))
                first = min(seconds for seconds, _ in found[ways[0]])
                size = sum(task.size_bytes for task in tasks) / 1e6
                for way in ways:
                    seconds, cpu_s = map(min, zip(*found[way], strict=True))
                    print(
                        f"| {delay_ms:g} | {way} | {seconds:.2f} | {first / seconds:.2f} "
                        f"| {cpu_s:.2f} | {size / seconds:.0f} | {planned:.2f} |",
                        flush=True,
                    )
    print(f"\nat most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB of memory")


if __name__ == "__main__":
    main()
