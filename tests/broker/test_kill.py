"""kill -9 under load: every acknowledged record is stored once, at its offset."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from pathlib import Path

import pytest

from kafkawire.codec.batches import iter_batches, records
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client, batch
from tests.kit.waiting import until

pytestmark = pytest.mark.real

PARTITIONS = 3
WRITERS = 6
LIVES = 4

Acked = dict[tuple[int, int], bytes]  # (partition, offset) -> value


def _port(broker: BrokerProcess) -> int:
    return int(broker.bootstrap.rsplit(":", 1)[1])


async def _write(port: int, writer: int, life: int, acked: Acked) -> None:
    """Produce until the broker dies; every second writer with acks=1, some pipelined."""
    acks = 1 if writer % 2 else -1
    partition = writer % PARTITIONS
    client = await Client.connect(port)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        for count in itertools.count():
            sent: list[list[bytes]] = []
            for extra in range(1 + writer % 3):
                name = b"%d-%d-%d-%d" % (life, writer, count, extra)
                sent.append([name + b"-%d" % n for n in range(1 + count % 4)])
                data = TopicProduceData("t", partition_data=[])
                data.partition_data.append(PartitionProduceData(partition, batch(*sent[-1])))
                client.send(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data]), 9)
            for values in sent:
                row = (await client.receive()).responses[0].partition_responses[0]
                assert row.error_code == 0
                for n, value in enumerate(values):
                    assert (partition, row.base_offset + n) not in acked, (
                        "an offset was assigned twice"
                    )
                    acked[partition, row.base_offset + n] = value
    with contextlib.suppress(OSError):
        await client.close()


async def _read_all(port: int, partition: int) -> dict[int, bytes]:
    client = await Client.connect(port)
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        row = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        asked = FetchTopic("t", partitions=[row])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 22, topics=[asked])
        answer = (await client.call(request, 11)).responses[0].partitions[0]
        assert answer.error_code == 0
        raw = bytes(answer.records or b"")
        if not raw:
            break
        for position, _ in iter_batches(raw):
            for record in records(raw, position):
                assert record.offset == offset, "offsets are contiguous"
                found[record.offset] = bytes(record.value or b"")
                offset += 1
    await client.close()
    return found


async def _life(broker: BrokerProcess, life: int, acked: Acked, rng: random.Random) -> None:
    port = _port(broker)
    for partition in range(PARTITIONS):
        found = await _read_all(port, partition)
        for (number, offset), value in acked.items():
            if number == partition:
                assert found.get(offset) == value
    writers = [asyncio.create_task(_write(port, n, life, acked)) for n in range(WRITERS)]
    wanted = len(acked) + rng.randrange(50, 1000)
    await until(lambda: len(acked) >= wanted or any(task.done() for task in writers), "records")
    broker.kill()
    await asyncio.gather(*writers)


@pytest.mark.parametrize("flush", ["commit", "os"])
async def test_acknowledged_records_survive_kill_9(tmp_path: Path, flush: str) -> None:
    rng = random.Random(9)
    acked: Acked = {}
    settings = {"flush": flush, "journal.bytes": str(1 << 20), "log.retention.ms": "-1"}
    broker = BrokerProcess(data=tmp_path / "data", settings=settings)
    try:
        broker.start()
        client = await Client.connect(_port(broker))
        topic = CreatableTopic("t", num_partitions=PARTITIONS, replication_factor=1)
        await client.call(CreateTopicsRequest([topic], 5000), 5)
        await client.close()
        for life in range(LIVES):
            if life:
                broker.start()
            await _life(broker, life, acked, rng)
    finally:
        broker.stop()
