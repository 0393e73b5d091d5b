"""Cost of a Fetch of many partitions of which three have new records, with and without a session.

    python -m bench.micro.fetch_sessions [--partitions 100,1000,10000] [--requests 30]

One broker on one core. Before each request three partitions get a record, by a connection of its
own; the Fetch reads them, and returns at once. Shown is the CPU time of the broker for a Fetch,
without that of the Produce, which is measured alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from bench.admin import Admin
from bench.report import number, show
from bench.server import Server, kafkawire
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import produce, values

CHANGED = 3
ROUNDS = 3
VERSION = 12


class Reader:
    """A client that fetches all partitions of a topic. `session`: it lists what has changed."""

    def __init__(self, client: Client, topic: str, partitions: int, *, session: bool) -> None:
        self.client = client
        self.topic = topic
        self.positions = dict.fromkeys(range(partitions), 0)
        self.epoch = 0 if session else -1
        self.session_id = 0
        self.changed = dict(self.positions)

    async def poll(self) -> int:
        """Fetch once; return the number of records."""
        asked = self.positions if self.epoch < 0 else self.changed
        rows = [
            FetchPartition(n, fetch_offset=at, partition_max_bytes=1 << 20)
            for n, at in asked.items()
        ]
        topics = [FetchTopic(self.topic, partitions=rows)] if rows else []
        request = FetchRequest(max_bytes=50 << 20, min_bytes=1, max_wait_ms=0, topics=topics)
        request.session_id, request.session_epoch = self.session_id, self.epoch
        answer = await self.client.call(request, VERSION)
        assert answer.error_code == 0, answer.error_code
        if self.epoch >= 0:
            self.session_id, self.epoch = answer.session_id, self.epoch + 1
        self.changed, found = {}, 0
        for topic in answer.responses:
            for row in topic.partitions:
                assert row.error_code == 0, row
                count = len(values(row))
                if count:
                    found += count
                    self.positions[row.partition_index] += count
                    self.changed[row.partition_index] = self.positions[row.partition_index]
        return found


async def cpu_us(
    process: psutil.Process, step: Callable[[int], Awaitable[None]], count: int
) -> float:
    """Return the CPU time of the broker for a step, in microseconds."""
    before = threads_ns(process)
    for at in range(count):
        await step(at)
    after = threads_ns(process)
    return sum(now - before.get(thread, 0) for thread, now in after.items()) / 1e3 / count


def threads_ns(process: psutil.Process) -> dict[int, int]:
    """Return the CPU time of each thread in nanoseconds: process times count in steps of 10 ms."""
    return {
        thread.id: int(Path(f"/proc/{thread.id}/schedstat").read_text().split()[0])
        for thread in process.threads()
    }


async def measure(server: Server, topic: str, partitions: int, requests: int) -> list[str]:
    """Return a row of the table."""
    process = psutil.Process(server.pid)
    writer = await Client.connect(server.port)
    found: dict[str, list[float]] = {"none": [], "session": [], "produce": []}
    readers = {}
    for kind in ("none", "session"):
        client = await Client.connect(server.port)
        readers[kind] = Reader(client, topic, partitions, session=kind == "session")
        while await readers[kind].poll():
            pass
    sent = 0

    async def write(_: int) -> None:
        nonlocal sent
        for _ in range(CHANGED):
            sent = (sent + 7919) % partitions
            await writer.call(produce(topic, batch(b"x"), index=sent), 9)

    for _ in range(ROUNDS):
        found["produce"].append(await cpu_us(process, write, requests))
        for kind, reader in readers.items():

            async def step(at: int, reader: Reader = reader) -> None:
                await write(at)
                got = 0
                while got < CHANGED:
                    got += await reader.poll()

            while await reader.poll():
                pass
            found[kind].append(await cpu_us(process, step, requests))
    base = statistics.median(found["produce"])
    full, kept = (statistics.median(found[kind]) - base for kind in ("none", "session"))
    return [f"{partitions:,}", number(full), number(kept), number(full / kept)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="100,1000,10000")
    parser.add_argument("--requests", type=int, default=30)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        server = Server(kafkawire(), Path(folder) / "broker", {0})
        try:
            server.start()
            for count in map(int, given.partitions.split(",")):
                with Admin(server.port) as admin:
                    # The records have the timestamp 0, so none may expire.
                    admin.create_topic(f"of-{count}", count, {"retention.ms": "-1"})
                rows.append(asyncio.run(measure(server, f"of-{count}", count, given.requests)))
        finally:
            server.discard()
    head = ("partitions", "all listed, us", "session, us", "ratio")
    show(f"CPU of a Fetch that reads {CHANGED} changed partitions", head, rows)


if __name__ == "__main__":
    main()
