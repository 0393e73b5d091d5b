"""kill -9 of a tiered broker under load, several times; then the data folder is lost.

Acknowledged records are there after each kill. Once the tier has settled, `kafkawire restore`
builds a broker from the bucket alone, with everything below the commit offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.codec.batches import iter_batches, records
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import SEGMENTS, segment_key
from kafkawire.manifest.reader import read_manifest
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client, batch
from tests.kit.waiting import until

pytestmark = pytest.mark.real

PARTITIONS = 3
WRITERS = 3
LIVES = 3
SETTLED_WITHIN_S = 90
SETTINGS = {
    "log.retention.ms": "-1",  # the timestamps of records are old; a full disk would delete them
    "journal.bytes": str(1 << 20),
    "journal.roll.ms": "1000",
    "hot.bytes": str(1 << 20),
    "cut.interval.ms": "200",
    "tier.delete.delay.ms": "1000",
    "tier.manifest.fold": "8",
}
CONFIGS = {
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "local.retention.ms": "1000",
}

Acked = dict[tuple[int, int], bytes]  # (partition, offset) -> value


async def write(port: int, writer: int, life: int, acked: Acked) -> None:
    """Produce until the broker dies."""
    partition = writer % PARTITIONS
    client = await Client.connect(port)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        for count in itertools.count():
            values = [b"%d-%d-%d-%d" % (life, writer, count, n) + bytes(500) for n in range(4)]
            data = TopicProduceData("t", partition_data=[])
            data.partition_data.append(PartitionProduceData(partition, batch(*values)))
            client.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
            row = (await client.receive()).responses[0].partition_responses[0]
            assert row.error_code == 0
            for n, value in enumerate(values):
                assert (partition, row.base_offset + n) not in acked, "an offset was assigned twice"
                acked[partition, row.base_offset + n] = value
            await asyncio.sleep(0.01)
    with contextlib.suppress(OSError):
        await client.close()


async def read_all(port: int, partition: int) -> dict[int, bytes]:
    """All records of a partition, cold or not."""
    client = await Client.connect(port)
    found: dict[int, bytes] = {}
    offset, empty = 0, 0
    while empty < 20:
        row = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        asked = FetchTopic("t", partitions=[row])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 22, topics=[asked])
        answer = (await client.call(request, 11)).responses[0].partitions[0]
        assert answer.error_code == 0
        raw = bytes(answer.records or b"")
        if not raw and offset >= answer.high_watermark:
            break
        empty = 0 if raw else empty + 1
        for position, _ in iter_batches(raw):
            for record in records(raw, position):
                if record.offset >= offset:
                    assert record.offset == offset, "offsets are contiguous"
                    found[record.offset] = bytes(record.value or b"")
                    offset += 1
    await client.close()
    return found


async def check(port: int, acked: Acked) -> dict[int, int]:
    """Check that every acknowledged record is there; return the end of each partition."""
    ends = {}
    for partition in range(PARTITIONS):
        found = await read_all(port, partition)
        for (number, offset), value in acked.items():
            if number == partition:
                assert found.get(offset) == value, f"offset {offset} of {partition}"
        ends[partition] = len(found)
    return ends


def manifest_of(tier: Path) -> Manifest:
    """The manifest in the bucket."""
    return read_manifest(lambda key: (tier / key).read_bytes())


async def settled(tier: Path, ends: dict[int, int]) -> Manifest:
    """Wait until the manifest has everything, and the folder has no other objects."""
    for _ in range(SETTLED_WITHIN_S * 2):
        await asyncio.sleep(0.5)
        with contextlib.suppress(LookupError, FileNotFoundError):
            manifest = manifest_of(tier)
            numbers = manifest.topics["t"].partitions
            rows = [manifest.get_partition(number) for number in numbers]
            have = {i: row.end for i, row in enumerate(rows) if row is not None}
            names = {segment_key(manifest.objects.uuid(n)) for n in range(len(manifest.objects))}
            there = {f"{SEGMENTS}{path.name}" for path in (tier / SEGMENTS).iterdir()}
            if have == ends and there == names:
                return manifest
    raise AssertionError(f"the tier has {have} of {ends}, {len(there)} objects of {len(names)}")


async def write_and_kill(broker: BrokerProcess, life: int, acked: Acked, after_s: float) -> None:
    """Write for this long, and until there are 200 records more; then kill the broker."""
    writers = [asyncio.create_task(write(broker.port, n, life, acked)) for n in range(WRITERS)]
    wanted = len(acked) + 200
    await asyncio.sleep(after_s)  # any moment of cutting and uploading
    await until(lambda: len(acked) >= wanted or any(task.done() for task in writers), "records")
    broker.kill()
    await asyncio.gather(*writers)


async def lives(broker: BrokerProcess, acked: Acked) -> dict[int, int]:
    """Start, check, write, die, repeatedly; in the end start and check. Return the ends of the
    partitions."""
    rng = random.Random(6)
    broker.start()
    client = await Client.connect(broker.port)
    configs = [CreatableTopicConfig(name, value) for name, value in CONFIGS.items()]
    topic = CreatableTopic("t", PARTITIONS, replication_factor=1, configs=configs)
    await client.call(CreateTopicsRequest([topic], 5000), 5)
    await client.close()
    for life in range(LIVES):
        if life:
            broker.start()
            await check(broker.port, acked)
        await write_and_kill(broker, life, acked, 1 + 2 * rng.random())
    broker.start()
    return await check(broker.port, acked)


def restore(tier: Path, data: Path) -> None:
    """Run `kafkawire restore`."""
    command = [sys.executable, "-P", "-m", "kafkawire", "restore", "--yes"]
    command += [str(tier), "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_tiered_broker_survives_kills_and_loss_of_disk(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    acked: Acked = {}
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS, arguments=["--tier", str(tier)])
    try:
        ends = await lives(broker, acked)
        assert len(acked) > 500
        await settled(tier, ends)
        assert await check(broker.port, acked) == ends  # most of it from the tier by now
    finally:
        broker.stop()
    shutil.rmtree(tmp_path / "data")
    await asyncio.to_thread(restore, tier, tmp_path / "again")
    broker = BrokerProcess(tmp_path / "again", settings=SETTINGS, arguments=["--tier", str(tier)])
    try:
        broker.start()
        assert await check(broker.port, acked) == ends
    finally:
        broker.stop()
