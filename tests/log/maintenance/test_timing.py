"""A topic's own settings are deadlines: each has its journal rolled, and cut, in time.

In virtual time, with the broker's default settings: a hot journal is rolled and cut for one small
topic in it, and for the settings of no other.

Covers: kafkawire.log.segments.cut.schedule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kafkawire.log.partition.partition import Partition
from tests.kit.log.logs import FOLDER
from tests.kit.tier.model import Row
from tests.kit.tier.world import TierProcess, TierWorld

DEFAULTS = {
    "cut_interval_ms": 1000,
    "journal_roll_ms": 600_000,
    "journal_bytes": 16 << 20,
    "journal_entries": 500_000,
    "hot_bytes": 64 << 20,
    "log_cleaner_backoff_ms": 15_000,
    "log_retention_check_interval_ms": 300_000,
    "log_flush_offset_checkpoint_interval_ms": 60_000,
    "file_delete_delay_ms": 60_000,
    "segment_dead_max_ms": 43_200_000,
}


def live(scenario: Callable[[TierProcess], Awaitable[None]]) -> None:
    process = TierProcess(TierWorld(1, **DEFAULTS))

    async def main() -> None:
        await process.start()
        await scenario(process)
        await process.close()

    process.run(main)


async def until(process: TierProcess, condition: Callable[[], bool], most_s: float) -> float:
    """Wait for a condition; return the seconds that took, at most `most_s`."""
    begun = process.loop.now
    while not condition():
        assert process.loop.now - begun <= most_s, "not in time"
        await process.env.sleep(0.5)
    return process.loop.now - begun


async def local(process: TierProcess, **configs: Any) -> Partition:
    """A topic that is not tiered, with 10,000 records of 200 keys."""
    await process.create("quiet", remote_storage_enable="false")
    (partition,) = await process.create("t", remote_storage_enable="false", **configs)
    for at in range(0, 10_000, 500):
        rows: list[Row] = [(b"%d" % (each % 200), b"value") for each in range(at, at + 500)]
        process.send(partition, rows)
    await process.log.commit_log.wait_until_committed()
    return partition


def records(partition: Partition) -> int:
    rows = partition.segments
    return sum(rows.mapping(partition.number, at).records for at in range(len(rows)))


def test_compacted_topic_is_cleaned_within_half_a_minute() -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(
            process,
            cleanup_policy="compact",
            segment_ms="1000",
            min_cleanable_dirty_ratio="0.01",
            max_compaction_lag_ms="2000",
        )
        await until(process, lambda: 0 < records(partition) <= 500, 30)

    live(scenario)


def test_max_compaction_lag_alone_cleans_a_hot_journal() -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(process, cleanup_policy="compact", max_compaction_lag_ms="10000")
        # Rolled after it, cut after as long again, cleaned at a scan of the cleaner.
        await until(process, lambda: 0 < records(partition) <= 500, 10 + 10 + 15 + 5)

    live(scenario)


@pytest.mark.parametrize("segment_ms", [1_000, 30_000])
def test_segment_ms_sets_time_of_roll_and_cut(segment_ms: int) -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(process, segment_ms=str(segment_ms))
        took = await until(process, lambda: partition.cut_offset > 0, 2 * segment_ms / 1000 + 5)
        assert took >= segment_ms / 1000

    live(scenario)


def test_hot_journal_is_not_rolled_for_default_settings() -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(process)
        await process.env.sleep(300)
        assert len(list(process.log.journals)) == 1
        assert partition.cut_offset == 0

    live(scenario)


def test_segment_bytes_rolls_and_cuts_once_per_segment() -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(process, segment_bytes=str(1 << 20))
        for _ in range(3):
            cut, last = partition.cut_offset, process.log.journals.active.number
            for _ in range(40):
                process.send(partition, [(b"k", bytes(30_000))])
                await process.env.sleep(0.01)

            def is_cut(before: int = cut) -> bool:
                return partition.cut_offset > before

            await until(process, is_cut, 5)
            assert process.log.journals.active.number == last + 1

    live(scenario)


def test_records_past_retention_ms_are_deleted_under_traffic() -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(process, retention_ms="60000")
        end = partition.next_offset
        begun = process.loop.now
        while partition.log_start < end:
            assert process.loop.now - begun < 60 + 75 + 300 + 5
            process.send(partition, [(b"k", b"v")])
            await process.env.sleep(5)
        assert partition.cut_offset == 0, "what is about to expire is not cut"

    live(scenario)


def test_retention_bytes_with_small_segments() -> None:
    async def scenario(process: TierProcess) -> None:
        size = 1 << 20
        partition = await local(process, segment_bytes=str(size), retention_bytes=str(size))
        for _ in range(100):
            process.send(partition, [(b"k", bytes(100_000))])
            await process.env.sleep(0.1)
        await until(process, lambda: partition.size_bytes <= 2 * size + 200_000, 305)

    live(scenario)


@pytest.mark.parametrize(("own", "least_s", "most_s"), [("1000", 1, 25), ("200000", 200, 225)])
def test_files_of_deleted_topic_are_removed_after_its_own_delay(
    own: str, least_s: float, most_s: float
) -> None:
    async def scenario(process: TierProcess) -> None:
        partition = await local(process, segment_ms="1000", file_delete_delay_ms=own)
        await until(process, lambda: partition.cut_offset > 0, 10)
        await process.delete("t")
        folder = f"{FOLDER}/segments"

        def gone() -> bool:
            return not [name for name in process.env.fs.listdir(folder) if "segment" in name]

        assert await until(process, gone, most_s) >= least_s

    live(scenario)
