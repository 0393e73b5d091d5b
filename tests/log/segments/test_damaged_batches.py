"""Damaged batches of segments: exactly their offsets are refused, and a sound copy is read."""

from __future__ import annotations

import random

import pytest

from kafkawire.codec.batches import LENGTH_AT, iter_batches
from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.damage import BadBatches, bad_batches, sound_run
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.log.segments.store.remote_tier import readable_log_start
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.tiering.read.cold_reader import Copy
from tests.kit.log.segments import batch, split
from tests.kit.tier.cold import ColdWorld, prepared, simulated, take, whole

COUNT = 6
BLOCK = b"".join(batch(at * 2, 2) for at in range(COUNT))
SIZE = len(BLOCK) // COUNT


def without_epoch(data: bytes) -> bytes:
    return data[:12] + data[16:]


def hurt(at: int, value: int = 1) -> bytes:
    data = bytearray(BLOCK)
    data[at] ^= value
    return bytes(data)


def test_exactly_the_damaged_batch_is_reported() -> None:
    for number in range(COUNT):
        for within in (*range(LENGTH_AT, LENGTH_AT + 4), *range(16, SIZE)):
            data = hurt(number * SIZE + within, 0x41)
            (found,) = bad_batches(data, 0, 2 * COUNT)
            assert found.first <= 2 * number, within
            assert found.end >= 2 * number + 2, within
            if within >= 16 or within == LENGTH_AT:  # its length is sound, or beyond the block
                expected = number * SIZE, (number + 1) * SIZE, 2 * number, 2 * number + 2
                assert found == expected, within


def test_damage_outside_batch_checksums_makes_block_bad() -> None:
    for within in (7, 12, 15):  # base offset, leader epoch
        assert bad_batches(hurt(2 * SIZE + within), 0, 12) == [BadBatches(0, len(BLOCK), 0, 12)]


def test_adjacent_damaged_batches_are_one_range() -> None:
    data = bytearray(BLOCK)
    for number in (1, 2, 4):
        data[number * SIZE + 30] ^= 1
    ranges = [(found.first, found.end) for found in bad_batches(bytes(data), 0, 12)]
    assert ranges == [(2, 6), (8, 10)]
    assert sound_run(bytes(data), 0, 12, 1) == (0, SIZE)
    assert sound_run(bytes(data), 0, 12, 6) == (3 * SIZE, 4 * SIZE)
    assert sound_run(bytes(data), 0, 12, 11) == (5 * SIZE, 6 * SIZE)
    for offset in (2, 5, 8, 9):
        assert isinstance(sound_run(bytes(data), 0, 12, offset), BadBatches)


def test_damage_after_compaction_gap_is_an_error() -> None:
    later = BLOCK[3 * SIZE :]  # nothing is left of offsets 0-5
    data = bytearray(later)
    data[30] ^= 1
    for offset in (0, 5, 6):
        assert sound_run(bytes(data), 6, 12, offset) == BadBatches(0, SIZE, 6, 8)
    assert sound_run(bytes(data), 6, 12, 8) == (SIZE, len(later))


def test_only_sound_batches_are_found_after_any_damage() -> None:
    """Except for the leader epoch: no checksum covers that of a sound batch in a damaged block."""
    rng, known = random.Random(5), [without_epoch(one) for one in split(BLOCK)]
    for _ in range(3000):
        data = bytearray(BLOCK)
        start = rng.randrange(len(data))
        stop = min(len(data), start + rng.choice([1, 2, 30, 200]))
        data[start:stop] = rng.choice([bytes(stop - start), rng.randbytes(stop - start)])
        if bytes(data) == BLOCK:
            continue
        runs, at = bad_batches(bytes(data), 0, 12), 0
        for run in [*runs, BadBatches(len(data), len(data), 12, 12)]:
            assert at <= run.start <= run.stop
            assert all(without_epoch(one) in known for one in split(bytes(data[at : run.start])))
            at = run.stop


# -- read by a broker


def damage_file(world: ColdWorld, segment: Segment, at: int) -> None:
    world.fs.files[segment.path].data[at] ^= 1


def damage_object(world: ColdWorld, segment: Segment, at: int) -> None:
    key = segment_key(segment.row.object)
    data = bytearray(world.bucket.objects[key])
    data[at] ^= 1
    world.bucket.store(key, bytes(data))


async def readable(world: ColdWorld) -> tuple[list[int], list[int]]:
    """The offsets that a reader gets and those that fail; it continues at the next offset."""
    partition = world.find("t")
    got: list[int] = []
    failed: list[int] = []
    codes = set()
    offset = partition.log_start
    while offset < partition.high_watermark:
        try:
            data, _ = await take(world, "t", offset)
        except KafkaError as error:
            codes.add(error.code)
            failed.append(offset)
            offset += 1
            continue
        heads = [head for _, head in iter_batches(data)]
        assert heads[0].base_offset <= offset <= heads[0].last_offset
        got += [head.base_offset for head in heads]
        offset = heads[-1].last_offset + 1
    assert codes <= {ErrorCode.CORRUPT_MESSAGE}
    return got, failed


@pytest.mark.parametrize("where", ["file", "object", "both"])
def test_exactly_the_offsets_of_a_damaged_batch_are_refused(where: str) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        await world.remote(world.segments()[1:2], local=where == "both")
        world.open_tier()
        segment = world.segments()[1]
        mapping = world.find("t").segments.mapping(world.find("t").number, 1)
        at = mapping.start + mapping.length // 2 + 100
        if where == "file":
            segment = world.segments()[0]
        if where != "object":
            damage_file(world, segment, at)
        if where != "file":
            damage_object(world, segment, at)
        got, failed = await readable(world)
        assert len(failed) == 1
        with pytest.raises(DamagedOffsets) as caught:
            await take(world, "t", failed[0])
        assert caught.value.end == failed[0] + 1, "this is how coordinators continue"
        first = 0 if where == "file" else 40
        assert first < failed[0] < first + 39
        assert got == [offset for offset in range(125) if offset not in failed]

    simulated(main)


@pytest.mark.parametrize("level", ["not-in-disk", "not-in-mem", "force"])
@pytest.mark.parametrize("copy", list(Copy))
def test_sound_copy_is_read_and_damaged_one_reported(level: str, copy: Copy) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments(), local=True)
        world.find("t").config.tier_level = TierLevel.from_name(level)
        world.open_tier()
        segment = world.segments()[1]
        damage = damage_file if copy is Copy.FILE else damage_object
        damage(world, segment, 3000)
        world.log.segments.store._close(segment.row.id)
        assert await whole(world) == batches
        used = {"not-in-disk": [Copy.FILE], "force": [Copy.OBJECT]}.get(level, list(Copy))
        if copy in used and level != "not-in-mem":
            assert world.damage == [(segment.row.id, copy)]

    simulated(main)


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_missing_or_truncated_file_is_read_from_object(harm: str) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments(), local=True)
        world.open_tier()
        segment = world.segments()[1]
        world.log.segments.store._close(segment.row.id)
        if harm == "missing":
            world.fs.remove(segment.path)
        else:
            world.fs.files[segment.path].resize(3000)
        assert await whole(world) == batches
        assert (segment.row.id, Copy.FILE) in world.damage

    simulated(main)


def test_log_begins_at_local_data_without_remote_reads() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        await world.remote(world.segments()[:2])
        world.open_tier()
        partition = world.find("t")
        store = world.log.segments.store
        assert readable_log_start(partition, store) == 0
        partition.config.tier_level = TierLevel.from_name("disable")
        assert readable_log_start(partition, store) == 80
        for offset in (0, 79):
            with pytest.raises(KafkaError, match="local data begins at offset 80") as caught:
                await take(world, "t", offset)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert len(split((await take(world, "t", 80))[0])) > 1
        found = await partition.offset_for_time(0)
        assert found is not None
        assert found[0] == 80

    simulated(main)
