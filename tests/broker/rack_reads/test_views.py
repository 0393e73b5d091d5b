"""Views of partitions that other brokers lead; tests/handlers/test_rack_reads.py reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.broker.rack_reads import views as views_module
from kafkawire.codec.errors import KafkaError
from kafkawire.log.partition.loader import NotLoaded
from kafkawire.metadata.checkpoint import PartitionCheckpoint, ProducerEntry
from kafkawire.offsets.catalog.port import PartitionRow
from tests.kit.racks import Racks, racks
from tests.kit.tier.commands import buckets_in_memory  # noqa: F401  (a fixture, by name)
from tests.kit.tier.fake_bucket import FakeBucket

pytestmark = pytest.mark.slow


@pytest.fixture
async def two(tmp_path: Path, buckets: dict[str, FakeBucket]) -> AsyncIterator[Racks]:
    async with racks(tmp_path) as made:
        await made.create()
        await made.append(b"1", b"2", b"3")
        await made.upload()
        yield made


async def test_a_view_takes_no_appends_and_is_in_no_table(two: Racks) -> None:
    number, views = two.partition.number, two.two.views
    with pytest.raises(NotLoaded):
        views.find(number, 0)
    await asyncio.gather(views.load([number]), views.load([number]))
    found = views.find(number, 2)
    assert (found.log_start, found.high_watermark, found.last_stable_offset) == (0, 3, 3)
    assert found.epoch_end(0) == (0, 3)
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        found.append_records(memoryview(bytearray(61)), 0)
    for offset in (-1, 3):
        with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
            views.find(number, offset)
    assert not two.two.log.partitions
    assert not two.two.table.by_id
    assert not two.two.log.commit_log.dirty


async def test_views_that_were_used_last_are_kept(
    two: Racks, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, views = two.partition.number, two.two.views
    monkeypatch.setattr(views_module, "MAX_VIEWS", 2)
    await views.load([number, 1 << 40])
    views.find(number, 0)
    await views.load([1 << 41])
    views.find(number, 0)
    with pytest.raises(NotLoaded):
        views.find(1 << 40, 0)
    monkeypatch.setattr(views_module, "MAX_ROWS", 0)
    await views.load([1 << 42])
    with pytest.raises(NotLoaded):
        views.find(number, 0)


async def test_a_range_that_cannot_be_read_divides_the_view(two: Racks) -> None:
    number, views = two.partition.number, two.two.views
    for value in (b"4", b"5"):
        await two.append(value)
        await two.upload()
    segments = two.partition.segments
    assert list(segments.base) == [0, 3, 4]
    row = two.one.log.segments.store.get_segment(segments.segment[1]).row
    await two.one.storage.delete_objects([row.object], 1 << 60)
    await views.load([number])
    ranges = [views.find(number, offset) for offset in (0, 4)]
    assert [each.high_watermark for each in ranges] == [3, 5]
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        views.find(number, 3)


def test_a_view_ends_at_the_first_open_transaction() -> None:
    entries = [ProducerEntry(1, 0), ProducerEntry(2, 0, open_offset=40)]
    state = PartitionCheckpoint(7, 90, 10, producers=entries)
    assert views_module.bounds(PartitionRow(7, state, [], 60, 60)) == (10, 40)
    assert views_module.bounds(PartitionRow(7, state, [], 60, 30)) == (10, 30)
    assert views_module.bounds(PartitionRow(7, None, [], 60, 30)) == (0, 30)
