"""Records of coordinators are appended without the checks of a producer's batch, and stored as the
topic says.

Covers: kafkawire.log.partition.partition.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import LOG_APPEND_TIME, iter_batches
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, read_all


async def partition_with(**configs: str) -> tuple[World, Partition]:
    world = World()
    await world.start()
    (partition,) = await world.topic("t", 1, **configs)
    return world, partition


async def test_they_get_offsets_like_every_batch() -> None:
    _, partition = await partition_with()
    assert partition.append(batch(b"a"), EPOCH_MS).base_offset == 0
    done = partition.append_records(batch(b"b", b"c"), EPOCH_MS)
    assert done == (1, -1, 0)
    assert partition.append(batch(b"d"), EPOCH_MS).base_offset == 3
    await partition.log.wait_until_committed()
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


async def test_a_changed_topic_configuration_applies_to_them() -> None:
    _, partition = await partition_with(
        message_timestamp_type="LogAppendTime", compression_type="gzip"
    )
    done = partition.append_records(batch(b"x" * 500), EPOCH_MS + 5)
    assert done.log_append_time_ms == EPOCH_MS + 5
    await partition.log.wait_until_committed()
    (buffer,) = await partition.log.read(partition.plan(0, 1, 1, True))
    ((_, head),) = iter_batches(buffer)
    assert head.attributes == LOG_APPEND_TIME | 1
    assert (head.max_timestamp, head.size_bytes < 500) == (EPOCH_MS + 5, True)


async def test_what_is_refused_changes_nothing() -> None:
    _, partition = await partition_with(max_message_bytes="100")
    with pytest.raises(KafkaError) as large:
        partition.append_records(batch(b"x" * 100), EPOCH_MS)
    assert large.value.code is ErrorCode.MESSAGE_TOO_LARGE
    partition.log.stop_writing("test")
    with pytest.raises(KafkaError) as failed:
        partition.append_records(batch(b"x"), EPOCH_MS)
    assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.frame is None
    assert partition.offsets.pending == 0
