"""Reads of segments that are sent from their files: the same bytes as reads into memory, only
checked ones, and their segment stays until the last holder has released it.

Covers: kafkawire.log.segments.store.sendable, kafkawire.log.io.file_span.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer, Part
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.file_span import FileSpan, unpin
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import SegmentRead
from kafkawire.log.partition.reader import PartitionReader
from kafkawire.log.segments.store import sendable
from tests.kit.env import InlineOffload
from tests.kit.log.cutting import ROOM, cut, expected, fill, segments, started
from tests.kit.log.logs import FOLDER, World, values
from tests.kit.log.transactional import Producer
from tests.kit.memfs import MemFile
from tests.kit.waiting import settle


@pytest.fixture(autouse=True)
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few blocks are enough for a span, and checked one after another."""
    monkeypatch.setattr(sendable, "MIN_SPAN_BYTES", 8 << 10)
    monkeypatch.setattr(sendable, "CHECKED_BYTES", 8 << 10)


def data_of(parts: Sequence[Part]) -> bytes:
    """The bytes of parts, which are released."""
    try:
        return b"".join(
            part.read(0, len(part)) if isinstance(part, FileSpan) else bytes(cast("Buffer", part))
            for part in parts
        )
    finally:
        unpin(parts)


async def both(
    partition: Partition, offset: int, room: int, end: int, first: bool = True
) -> tuple[bytes, bytes, int]:
    """The bytes that are sent, those that are read into memory, and the number of spans."""
    plan = partition.plan(offset, room, end, first)
    parts = await reader_of(partition).read_parts(plan)
    spans = sum(isinstance(part, FileSpan) for part in parts)
    read = await partition.log.read(partition.plan(offset, room, end, first))
    return data_of(parts), b"".join(read), spans


def pins(world: World) -> int:
    return sum(segment.pins for segment in world.log.segments.store.by_id.values())


def reader_of(partition: Partition) -> PartitionReader:
    assert isinstance(partition.log, CommitLog)
    return partition.log.reader


async def walk(partition: Partition, room: int) -> tuple[list[tuple[int, bytes | None]], list[int]]:
    """All records that can be read, and the offsets that are refused as damaged."""
    served: list[tuple[int, bytes | None]] = []
    refused: list[int] = []
    offset = 0
    while offset < partition.high_watermark:
        plan = partition.plan(offset, room, partition.high_watermark, True)
        try:
            served += values([data_of(await reader_of(partition).read_parts(plan))])
            offset = served[-1][0] + 1
        except OSError:
            continue  # a checked block is gone: the next read checks again
        except KafkaError as failure:
            refused += [offset] if failure.code is ErrorCode.CORRUPT_MESSAGE else []
            offset += 1
    return served, refused


def flip(world: World, at: int) -> None:
    """Damage a byte of the only segment."""
    (name,) = segments(world)
    world.fs.files[f"{FOLDER}/segments/{name}"].data[at] ^= 1


@pytest.mark.parametrize("seed", range(4))
async def test_spans_are_a_beginning_of_what_would_be_read(seed: int) -> None:
    rng = random.Random(seed)
    world = await started()
    partition = world.find("t0")
    for _ in range(2):
        await fill(partition, 60, rng.choice([300, 900]))
        await cut(world)
    spans = 0
    for _ in range(60):
        offset, room = rng.randrange(120), rng.randrange(1, 70_000)
        end = rng.choice([partition.high_watermark, rng.randrange(offset + 1, 121)])
        sent, read, count = await both(partition, offset, room, end, rng.random() < 0.8)
        assert read.startswith(sent)
        assert bool(sent) == bool(read)
        assert len(read) - len(sent) < 2 * 4096 + 1000, "less than two blocks fewer"
        if sent:
            got = values([sent])
            assert got == [each for each in values([read])[: len(got)]]
            assert got[0][0] == offset
        spans += count
    assert spans > 10
    assert pins(world) == 0


async def test_reader_that_continues_gets_everything_and_reads_no_file() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 150)
    await cut(world)
    offload = world.env.offload
    assert isinstance(offload, InlineOffload)
    for checked in (False, True):
        offset, got = 0, []
        while offset < partition.cut_offset:
            if checked:
                offload.hold("warm")  # a call would never return
            room = 20_000 if partition.cut_offset - offset > 40 else 1
            if room == 1:
                offload.release("warm")
            plan = partition.plan(offset, room, partition.high_watermark, True)
            parts = await asyncio.wait_for(reader_of(partition).read_parts(plan), 60)
            got += values([data_of(parts)])
            offset = got[-1][0] + 1
        assert got == expected(0, offset)
        assert pins(world) == 0


@pytest.mark.parametrize("committed", [False, True])
async def test_spans_that_are_ready_are_those_of_a_read(committed: bool) -> None:
    """Once the blocks were checked, and only where the read ends in that segment."""
    rng = random.Random(9)
    world = await started()
    partition = world.find("t0")
    producer = Producer(7)
    for at in range(120):
        producer.send(partition, b"%d:" % at + bytes(800))
        await partition.log.wait_until_committed()
        producer.end(partition, commit=bool(at % 3))
        await partition.log.wait_until_committed()
        if at == 60:
            await cut(world)
    await cut(world)
    reader, ready, high, offset = reader_of(partition), 0, partition.high_watermark, 0
    for _ in range(300):
        if rng.random() < 0.2 or offset >= partition.cut_offset:
            offset = rng.randrange(partition.cut_offset)
        room, end = rng.randrange(1, 60_000), rng.choice([high, rng.randrange(offset + 1, 241)])
        plan = partition.plan(offset, room, end, True)
        assert isinstance(plan, SegmentRead)
        got: list[Aborted] | None = [] if committed else None
        span = reader.segments.ready(plan, got)
        aborted: list[Aborted] | None = [] if committed else None
        parts = await reader.read_parts(plan, None, aborted)
        data = data_of(parts)
        if span is not None:
            assert data_of([span]) == data
            assert got == aborted
            ready += 1
        offset = [head.base_offset + head.last_delta for _, head in iter_batches(data)][-1] + 1
    assert ready > 20
    assert pins(world) == 0


async def test_damaged_block_is_never_sent() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 150)
    await cut(world)
    flip(world, 40_000)
    served, refused = await walk(partition, 30_000)
    assert len(refused) == 1
    assert served == [each for each in expected(0, 150) if each[0] not in refused]
    assert pins(world) == 0


async def test_batches_after_the_end_of_a_short_file_are_refused() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 150)
    await cut(world)
    plan = partition.plan(0, 16_000, partition.high_watermark, True)
    unpin(await reader_of(partition).read_parts(plan))  # the file was opened and its index loaded
    (name,) = segments(world)
    world.fs.files[f"{FOLDER}/segments/{name}"].resize(30_000)
    served, refused = await walk(partition, 16_000)
    assert served == [each for each in expected(0, 150) if each[0] not in refused]
    assert set(range(60, partition.cut_offset)) <= set(refused)
    assert pins(world) == 0


async def test_readers_of_committed_records_know_the_same_aborted_ones() -> None:
    world = await started()
    partition = world.find("t0")
    producer = Producer(7)
    for at in range(60):
        producer.send(partition, b"%d:" % at + bytes(800))
        await partition.log.wait_until_committed()
        producer.end(partition, commit=bool(at % 3))
        await partition.log.wait_until_committed()
    await settle()
    await cut(world)
    found: list[tuple[list[Aborted], int]] = []
    for read in (reader_of(partition).read_parts, partition.log.read):
        aborted: list[Aborted] = []
        plan = partition.plan(5, 30_000, partition.committed_end(5), True)
        parts: Any = await read(plan, None, aborted)
        found.append((aborted, len(parts)))
        unpin(parts)
    (sent, _), (kept, _) = found
    assert sent
    assert set(sent) <= set(kept)
    assert len(kept) - len(sent) < 5


async def test_segment_stays_while_a_span_is_held() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 80)
    await cut(world)
    await fill(partition, 20)
    plan = partition.plan(0, 20_000, partition.high_watermark, True)
    parts = await reader_of(partition).read_parts(plan)
    (span,) = parts
    assert isinstance(span, FileSpan)
    before = span.read(0, len(span))
    span.pin()
    await partition.delete_records(90)
    for _ in range(2):
        await world.log.segments.tend()
        clock: Any = world.env.clock
        clock.ms += 36_000_000
        await world.log.segments.tend()
        assert len(segments(world)) == 1
        assert span.read(0, len(span)) == before
        span.unpin()
    await world.log.segments.tend()
    assert segments(world) == []
    with pytest.raises(AssertionError):
        span.unpin()


async def test_span_of_a_replaced_file_stays_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 80)
    await cut(world)
    (span,) = await reader_of(partition).read_parts(
        partition.plan(0, 20_000, partition.high_watermark, True)
    )
    assert isinstance(span, FileSpan)
    before, (name,), store = span.read(0, len(span)), segments(world), world.log.segments.store
    (segment,) = store.by_id.values()
    closed: list[object] = []

    def close(file: MemFile) -> None:
        closed.append(file)

    monkeypatch.setattr(MemFile, "close", close)
    world.fs.open("/data/new", create=True).pwritev([b"other"], 0)
    old = segment.file
    segment.pins += 1
    await store.replace_file(segment, "/data/new")
    segment.pins -= 1
    assert span.read(0, len(span)) == before
    assert old not in closed
    span.unpin()
    assert closed.count(old) == 1
    assert name in segments(world)


async def test_cancelled_read_releases_its_spans() -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    await cut(world)
    await fill(partition, 60)
    await cut(world)
    plan = partition.plan(0, ROOM, partition.high_watermark, True)
    unpin(await reader_of(partition).read_parts(plan))
    offload = world.env.offload
    assert isinstance(offload, InlineOffload)
    second = partition.segments.segment[1]
    world.log.segments.warm.indexes._kept.pop((second, partition.number))
    offload.hold("warm")
    reading = asyncio.ensure_future(reader_of(partition).read_parts(plan))
    await settle()
    assert pins(world) == 2
    reading.cancel()
    await settle()
    offload.release("warm")
    await settle()
    assert pins(world) == 0
