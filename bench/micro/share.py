"""Records that 16 members of a share group acquire and acknowledge, on one core of the broker.

    python -m bench.micro.share [--members 16] [--records 400000] [--partitions 4] [--batch 100]
        [--brokers kafkawire,kafka]

The members have a connection each, and accept what they have acquired with their next ShareFetch,
as Java's client does. Shown is what a core of the broker does in a second by its CPU time, because
the members use the other core of the machine, and how many went through. Apache Kafka runs on the
same core, after a minute of the same work.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.admin import Admin
from bench.peer_recipes import install, kafka
from bench.report import number, show
from bench.server import Recipe, Server, kafkawire
from kafkawire.codec.batches import build
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStateData,
    PartitionData,
)
from kafkawire.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)
from tests.kit.client import Client
from tests.kit.produce_fetch import produce

GROUP = "bench"
VALUE = bytes(100)
MAX_RECORDS = 500
IDLE_MS = 500
ROUNDS = 3


class Sharer:
    """A member of the group. `settling`: what it has acquired, by partition."""

    def __init__(self, client: Client, topic: bytes, partitions: int, name: str) -> None:
        self.client = client
        self.topic = topic
        self.partitions = partitions
        self.name = name
        self.epoch = 0
        self.settling: dict[int, list[AcknowledgementBatch]] = {}

    async def poll(self) -> int:
        """Accept what was acquired, and acquire more; return how many records."""
        if self.epoch:
            rows = [FetchPartition(index, acks) for index, acks in self.settling.items()]
        else:
            rows = [FetchPartition(index) for index in range(self.partitions)]
        topics = [FetchTopic(self.topic, rows)] if rows else []
        request = ShareFetchRequest(
            GROUP, self.name, self.epoch, IDLE_MS, 1, 50 << 20, MAX_RECORDS, MAX_RECORDS,
            topics=topics,
        )  # fmt: skip
        answer = await self.client.call(request, 2)
        assert answer.error_code == 0, answer.error_code
        self.epoch += 1
        self.settling, found = {}, 0
        for topic in answer.responses:
            for row in topic.partitions:
                assert (row.error_code, row.acknowledge_error_code) == (0, 0), row
                acks = [
                    AcknowledgementBatch(run.first_offset, run.last_offset, [1])
                    for run in row.acquired_records
                ]
                if acks:
                    self.settling[row.partition_index] = acks
                    found += sum(ack.last_offset - ack.first_offset + 1 for ack in acks)
        return found


async def measure(
    server: Server, topic: bytes, name: str, partitions: int, records: int, members: int, size: int
) -> list[str]:
    """Return a row of the table."""
    process = psutil.Process(server.pid)
    writer = await Client.connect(server.port)
    await initialize(writer, topic, partitions)
    now_ms = int(time.time() * 1000)  # older ones would be deleted meanwhile
    batch = bytes(build([(None, VALUE)] * size, timestamp_ms=now_ms))
    for at in range(records // size):
        await writer.call(produce(name, batch, index=at % partitions), 9)
    sharers = [
        Sharer(await Client.connect(server.port), topic, partitions, f"m{n}")
        for n in range(members)
    ]
    done = 0

    async def work(sharer: Sharer) -> None:
        nonlocal done
        while done < records:
            found = await sharer.poll()
            done += found
        await sharer.poll()

    cpu, begun = process.cpu_times(), time.perf_counter()
    await asyncio.gather(*map(work, sharers))
    seconds = time.perf_counter() - begun
    after = process.cpu_times()
    used = after.user + after.system - cpu.user - cpu.system
    for client in (writer, *(sharer.client for sharer in sharers)):
        await client.close()
    return [number(done / used), number(done / seconds), number(used / seconds * 100)]


async def initialize(client: Client, topic: bytes, partitions: int) -> None:
    """Initialize the share partitions, as a group coordinator does for a new group."""
    states = [PartitionData(index, 1, 0) for index in range(partitions)]
    request = InitializeShareGroupStateRequest(GROUP, [InitializeStateData(topic, states)])
    key = f"{GROUP}:{base64.urlsafe_b64encode(topic).decode().rstrip('=')}:0"
    for _ in range(100):
        await client.call(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6)
        made = await client.call(request, 0)
        if not any(row.error_code for each in made.results for row in each.partitions):
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the share partitions are not initialized: {made}")


def measure_broker(recipe: Recipe, given: argparse.Namespace, size: int) -> list[str]:
    """Return the row of a broker, which has done the same work before for as long as it needs."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        server = Server(recipe, Path(folder) / "broker", {0})
        try:
            server.start()
            warm_at = time.monotonic() + recipe.warm_s
            for round_ in itertools.count():
                warm = time.monotonic() >= warm_at
                name = f"t{round_}"
                with Admin(server.port) as admin:
                    admin.create_topic(name, given.partitions)
                topic = asyncio.run(find_topic(server.port, name))
                count = given.records if size > 1 else given.records // 8
                row = asyncio.run(
                    measure(server, topic, name, given.partitions, count, given.members, size)
                )
                if warm:
                    break
            return [f"{size}", recipe.name, *row]
        finally:
            server.discard()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch", default="1,10,100")
    parser.add_argument("--brokers", default="kafkawire", help="kafkawire, kafka or both")
    given = parser.parse_args()
    recipes: dict[str, Callable[[], Recipe]] = {"kafkawire": kafkawire, "kafka": kafka}
    brokers = given.brokers.split(",")
    if "kafka" in brokers:
        install("kafka")
    rows = [
        measure_broker(recipes[name](), given, size)
        for size in map(int, given.batch.split(","))
        for name in brokers
    ]
    head = ("records in a batch", "broker", "records/s of a core", "records/s", "CPU, %")
    show(f"Records acquired and acknowledged by {given.members} members", head, rows)


async def find_topic(port: int, name: str) -> bytes:
    """Return the id of a topic."""
    from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic

    client = await Client.connect(port)
    answer = await client.call(MetadataRequest([MetadataRequestTopic(name=name)]), 12)
    await client.close()
    return bytes(answer.topics[0].topic_id)


if __name__ == "__main__":
    main()
