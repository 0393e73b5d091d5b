"""Damage to acknowledged frames: no offset is assigned twice, and the loss is reported.

Covers: kafkawire.log.journal.salvage, kafkawire.log.partition.damaged_ranges,
kafkawire.log.recovery.result.
"""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.fsck.check import check
from kafkawire.log.journal.file import journal_name
from kafkawire.log.journal.format import HEAD_BYTES
from kafkawire.log.journal.salvage import Unexplained, explain, repair_one_byte
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.metadata.checkpoint import Checkpoint
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, World, batch, read_all
from tests.kit.log.recovery import flip_bit
from tests.kit.memory_metadata import MemoryMetadata

SETTINGS: dict[str, Any] = {"log_flush_offset_checkpoint_interval_ms": 1 << 40}


async def three(**settings: Any) -> tuple[World, list[Partition]]:
    """Three partitions of one topic; the first ends with a frame of two batches, five records."""
    world = World(**SETTINGS, **settings)
    await world.start()
    partitions = await world.topic("t", 3)
    for partition in partitions:
        await put(world, partition, b"a", b"b")
    partitions[0].append(batch(b"c", b"d", b"e"), EPOCH_MS)
    await put(world, partitions[0], b"f", b"g")
    for partition in partitions[1:]:
        await put(world, partition, b"c")
    return world, partitions


async def put(world: World, partition: Partition, *values: bytes) -> int:
    """Append one batch; return its base offset, once it is committed."""
    done = partition.append(batch(*values), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    return done.base_offset


def refused(partition: Partition, offset: int) -> bool:
    with pytest.raises(KafkaError) as failure:
        partition.plan(offset, 1 << 20, partition.high_watermark, True)
    return failure.value.code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
async def test_flipped_byte_in_last_frame_of_partition(
    part: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The other partitions continue at their end; this one continues exactly after the lost
    offsets."""
    _, partitions = await three()
    rows = partitions[0].rows
    size = HEAD_BYTES + rows.length[-1]
    for at in range(part, size, 4):
        world, partitions = await three()
        flip_bit(world, partitions[0].rows.log_position[-1] - HEAD_BYTES + at, bit=1 << at % 8)
        caplog.clear()
        await world.crash()
        assert "offsets 2-6 of t-0" in caplog.text, at
        first, *others = (world.find("t", index) for index in range(3))
        assert [partition.next_offset for partition in others] == [3, 3], at
        assert first.next_offset == first.high_watermark == 7, at
        assert first.leader_epoch == 1
        assert first.epoch_end(0) == (0, 7)
        for offset in (2, 4, 6):
            assert refused(first, offset)
        assert await put(world, first, b"h") == 7
        assert await read_all(first, 7) == [(7, b"h")]
        await world.restart()
        assert world.find("t").next_offset == 8
        assert refused(world.find("t"), 6)


@pytest.mark.parametrize("count", [3, 17, 80, 300])
async def test_unreadable_frames_are_bounded_by_length(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """This many bytes from the frame header on are zeros: their partition is unknown."""
    world, partitions = await three()
    log_position = partitions[0].rows.log_position[-1] - HEAD_BYTES
    for at in range(min(count, HEAD_BYTES + partitions[0].rows.length[-1])):
        node = world.fs.files[f"{FOLDER}/journals/{log_position >> 32:010d}.journal"]
        flip_bit(world, log_position + at, bit=node.data[(log_position & 0xFFFFFFFF) + at])
    await world.crash()
    first, *others = (world.find("t", index) for index in range(3))
    assert [partition.next_offset for partition in others] == [3, 3], "they have later frames"
    assert first.next_offset >= 7
    assert refused(first, 2)
    assert refused(first, first.next_offset - 1)
    assert "is damaged in bytes" in caplog.text
    assert await put(world, first, b"h") == first.next_offset - 1
    assert (await read_all(first, first.next_offset - 1))[0][1] == b"h"


async def test_fsck_reports_the_same_before_and_after_start() -> None:
    world, partitions = await three()
    flip_bit(world, partitions[0].rows.log_position[-1] + 70)
    await world.abandon()
    world.fs.crash()
    world.metadata = MemoryMetadata(world.database)
    world.catalog = await world.metadata.open()
    world.storage = world.metadata.storage(world.env.clock.now_ms)
    for _ in range(2):
        report = await check(world.env, FOLDER, 1, world.catalog, world.storage, world.metadata)
        texts = [f"{problem.where}: {problem.text}" for problem in report.problems]
        assert any("offsets 2-6 of t-0 are lost" in text for text in texts), texts
        assert "t-0: offsets 2-6 are in no segment and no journal" in texts
        assert not report.clean
        await report.repair()
        await world.start()
        assert world.find("t").next_offset == 7
        await world.log.close()
        world.metadata = MemoryMetadata(world.database)
        world.catalog = await world.metadata.open()
        world.storage = world.metadata.storage(world.env.clock.now_ms)


SHIFTS = [8, 4096, 1_000_000, 1 << 32, 1 << 50]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("shift", SHIFTS)
async def test_checkpoint_after_the_end_of_the_log_is_damage_of_its_row(
    shift: int, clean: bool
) -> None:
    """A bit of the row changed: neither journals nor ledger have anything there. It is found at
    once, by a check and by the start, which changes nothing."""
    world, _ = await three()
    await world.log.checkpoint()
    if clean:
        await world.log.close()
    else:
        await world.abandon()
        world.fs.kill()
    metadata = MemoryMetadata(world.database)
    catalog = await metadata.open()
    storage = metadata.storage(world.env.clock.now_ms)
    right = await storage.load_log_position(1)
    await storage.save_checkpoint(Checkpoint(1, right + shift))
    before = {path: bytes(node.data) for path, node in world.fs.files.items()}
    with pytest.raises(IdentityError, match="row of broker 1 in table checkpoints says") as refused:
        await world.start()
    assert "`kafkawire restore --from-log --data " in str(refused.value)
    assert {path: bytes(node.data) for path, node in world.fs.files.items()} == before
    report = await check(world.env, FOLDER, 1, catalog, storage, metadata)
    assert [problem.where for problem in report.problems] == ["table checkpoints"]
    await storage.save_checkpoint(Checkpoint(1, right))
    await world.start()
    assert [world.find("t", at).next_offset for at in range(3)] == [7, 3, 3]


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) - 64])
def test_zeros_are_not_searched_for_frames(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search for a wrong byte in them would take a second."""
    monkeypatch.setattr(
        "kafkawire.log.journal.salvage.repair_one_byte", lambda *_: pytest.fail("searched")
    )
    assert explain(memoryview(bytes(64 + size)), 1, 64, 64 + size) == [Unexplained(64, 64 + size)]


@given(st.binary(min_size=1, max_size=200), st.integers(0, 199), st.integers(1, 255))
def test_wrong_byte_is_found_by_the_checksum(covered: bytes, at: int, error: int) -> None:
    wrong = bytearray(covered)
    wrong[at % len(covered)] ^= error
    assert repair_one_byte(bytes(wrong), crc32c(covered)) == covered


async def test_record_after_the_checkpoint_is_lost_with_the_last_journal() -> None:
    """Journal and ledger say nothing of it: the ledger's position is older, and the next journal
    was only prepared, so it does not know where this one ended."""
    world, partitions = await three()
    path = f"{FOLDER}/journals/{journal_name(1)}"
    prepared = f"{FOLDER}/journals/{journal_name(2)}"
    ledger = {name: bytes(node.data) for name, node in world.fs.files.items() if "/ledger." in name}
    await world.log.checkpoint()
    last = await put(world, partitions[0], b"h")
    await world.abandon()
    world.fs.crash()
    for name, data in ledger.items():
        world.fs.files[name].data[:] = world.fs.files[name].durable[:] = data
    size = len(world.fs.files[path].data)
    world.fs.files[prepared] = world.fs.files.pop(path)
    for content in (world.fs.files[prepared].data, world.fs.files[prepared].durable):
        content[:] = bytes(size)
    await world.start()
    assert world.find("t").next_offset > last
    assert refused(world.find("t"), last)
