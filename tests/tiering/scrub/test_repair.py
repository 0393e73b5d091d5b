"""A damaged copy of a segment is replaced by the sound one once a read has found it.

Covers: kafkawire.tiering.scrub.local_copy, kafkawire.tiering.scrub.background_repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.errors import KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.index_cache import WarmIndexes
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.tiering.scrub.repair import discard_remote_copy
from tests.kit.tier.life import Life
from tests.kit.tier.world import TierWorld, read_partition

LIFE_S = 600.0
"""Limit in virtual time; a test that takes longer hangs."""


def live(act: Callable[[Life, Partition, Segment], Awaitable[None]]) -> None:
    """A broker with a topic in segments that have both a file and an object; `act` gets one."""
    life = Life(TierWorld(1))

    async def main() -> None:
        await life.start()
        await life.topic("t", 1)
        await life.produce("t", 3)
        await life.settle()
        (partition,) = await life.partitions()
        store = life.log.segments.store
        async with asyncio.timeout(LIFE_S):
            await act(life, partition, store.by_id[partition.segments.segment[1]])
        await life.close()

    life.run(main)
    assert not life.loop.failures


def forget(life: Life, segment: Segment) -> None:
    """Close and unload everything, as after a start."""
    life.log.segments.store._close(segment.row.id)
    indexes = WarmIndexes()
    life.log.segments.warm.indexes = life.tiering.cold._indexes = indexes
    life.tiering.cold._tiers.clear()


def damage_file(life: Life, segment: Segment) -> None:
    life.world.fs.files[segment.path].data[150] ^= 16


def damage_object(life: Life, segment: Segment) -> None:
    bucket, key = life.world.bucket, segment_key(segment.row.object)
    data = bytearray(bucket.data(key))
    data[150] ^= 16
    bucket.store(key, bytes(data))


async def repaired(life: Life, count: int = 1) -> None:
    while life.tiering.repairer.repaired < count:
        await life.env.sleep(0.1)


@pytest.mark.parametrize("harm", ["flipped", "short", "gone"])
def test_damaged_file_is_replaced_by_its_object(harm: str) -> None:
    async def act(life: Life, partition: Partition, segment: Segment) -> None:
        before = await read_partition(partition, 0)
        fs = life.world.fs
        sound = bytes(fs.files[segment.path].data)
        forget(life, segment)
        if harm == "flipped":
            damage_file(life, segment)
        elif harm == "short":
            fs.files[segment.path].resize(300)
        else:
            fs.remove(segment.path)
        assert await read_partition(partition, 0) == before
        await repaired(life)
        assert bytes(fs.files[segment.path].data) == sound
        life.world.bucket.forget(segment_key(segment.row.object))
        assert await read_partition(partition, 0) == before
        assert life.tiering.repairer.repaired == 1

    live(act)


def test_damaged_object_is_replaced_by_file() -> None:
    async def act(life: Life, partition: Partition, segment: Segment) -> None:
        before = await read_partition(partition, 0)
        old = segment.row.object
        forget(life, segment)
        damage_object(life, segment)
        partition.config.tier_level = TierLevel.FORCE
        assert await read_partition(partition, 0) == before
        await repaired(life)
        while segment.row.object in (old, b""):
            await life.env.sleep(1)
        data = bytes(life.world.bucket.data(segment_key(segment.row.object)))
        assert data == bytes(life.world.fs.files[segment.path].data)

    live(act)


def test_nothing_is_replaced_if_both_copies_are_damaged(caplog: pytest.LogCaptureFixture) -> None:
    async def act(life: Life, partition: Partition, segment: Segment) -> None:
        forget(life, segment)
        damage_file(life, segment)
        damage_object(life, segment)
        with pytest.raises(KafkaError):
            await read_partition(partition, 0)
        await life.env.sleep(10)
        assert life.tiering.repairer.repaired == 0
        assert f"both copies of segment {segment.name} are damaged" in caplog.text

    live(act)


def test_damage_found_by_upload_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def act(life: Life, partition: Partition, segment: Segment) -> None:
        old = segment.row.object
        damage_file(life, segment)
        rows = await life.storage.objects_by_uuid([old])
        await discard_remote_copy(life.tiering.site(), rows[0].uuid)
        while segment.row.object in (old, b""):
            await life.env.sleep(1)
        assert f"of {partition.topic}-0 are damaged: bytes 64-" in caplog.text
        assert "The segment is uploaded with the damage" in caplog.text

    live(act)
