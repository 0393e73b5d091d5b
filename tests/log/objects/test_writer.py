"""The writer of log objects: contents, attempts whose answer was lost, fences.

Covers: kafkawire.log.objects.port.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kafkawire.log.append.object_sink import FrameSpan, Gathered
from kafkawire.log.io.ports import Superseded
from kafkawire.log.objects.format import read_frames, read_header, read_names, write_fence
from kafkawire.log.objects.writer import LogObjectWriter
from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import StoreError
from tests.kit.env import EPOCH_MS
from tests.kit.log.log_objects import small_object
from tests.kit.log.logs import World, batch, values
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

NODE, EPOCH, NONCE = 1, 7, b"n" * 16
KEY = log_object_key(EPOCH, 2)


class Fixture:
    """Frames of two partitions in the journals, and a writer."""

    def __init__(self, world: World, partitions: list[Partition]) -> None:
        self.world, self.partitions = world, partitions
        self.bucket = FakeBucket()
        self.writer = self.made(NONCE)

    def made(self, nonce: bytes) -> LogObjectWriter:
        store = FakeStore(self.bucket, self.world.fs)
        return LogObjectWriter(self.world.env, store, self.world.log.journals, NODE, EPOCH, nonce)

    def gathered(self) -> Gathered:
        """The frames that are in the journals."""
        objects = self.world.log.commit_log.object_sink
        return objects.queue.newest


@pytest.fixture
async def fixture() -> AsyncIterator[Fixture]:
    world = World()
    await world.start()
    partitions = await world.topic("t", 2, durability="s3")
    for partition in (partitions[0], partitions[1], partitions[0]):
        partition.append(batch(b"a", b"b"), EPOCH_MS)
        await world.log.commit_log.disk_sink.wait_until_durable()
    yield Fixture(world, partitions)
    await world.abandon()


async def test_object_has_names_and_frames(fixture: Fixture) -> None:
    await fixture.writer.store(2, fixture.gathered())
    data = fixture.bucket.data(KEY)
    head = read_header(data, KEY)
    assert (head.node_id, head.sequence, head.nonce, head.frame_count) == (NODE, 2, NONCE, 3)
    first, second = fixture.partitions
    names = read_names(data, head)
    assert {number: (each.topic, each.next_offset) for number, each in names.items()} == {
        first.number: ("t", 4),
        second.number: ("t", 2),
    }
    frames = list(read_frames(memoryview(data), head))
    assert [each.number for each in frames] == [first.number, second.number, first.number]
    assert values([*frames[2].batches]) == [(2, b"a"), (3, b"b")]


async def test_attempt_that_was_stored_counts(fixture: Fixture) -> None:
    await fixture.writer.store(2, fixture.gathered())
    await fixture.writer.store(2, fixture.gathered())
    assert fixture.bucket.requests["put"] == 2


@pytest.mark.parametrize("found", ["fence", "other", "newer", "none of ours"])
async def test_anything_else_there_ends_the_log(fixture: Fixture, found: str) -> None:
    await fixture.made(b"o" * 16).store(2, fixture.gathered())
    other = fixture.bucket.data(KEY)
    data = {
        "fence": write_fence(NODE, EPOCH, 2, NONCE, 8, 0),
        "other": other,
        "newer": other[:8] + (99).to_bytes(4, "big") + other[12:],
        "none of ours": b"?",
    }[found]
    fixture.bucket.store(KEY, data)
    with pytest.raises(Superseded, match="has ended the log of this process at object 2"):
        await fixture.writer.store(2, fixture.gathered())
    assert fixture.bucket.data(KEY) == data


async def test_conflict_without_an_object_is_tried_again(fixture: Fixture) -> None:
    fixture.bucket.store(KEY, small_object())

    def forget(moment: str, kind: str, key: str) -> None:
        if (moment, kind) == ("call", "get"):
            fixture.bucket.forget(key)

    fixture.bucket.hook = forget
    with pytest.raises(StoreError) as conflict:
        await fixture.writer.store(2, fixture.gathered())
    assert conflict.value.code == "Conflict"


async def test_journal_that_cannot_be_read_stores_nothing(fixture: Fixture) -> None:
    gathered = fixture.gathered()
    gathered.spans.append(FrameSpan(gathered.spans[0].journal, 1 << 30, (1 << 30) + 8))
    with pytest.raises(OSError, match="ends at"):
        await fixture.writer.store(2, gathered)
    assert not fixture.bucket.objects
