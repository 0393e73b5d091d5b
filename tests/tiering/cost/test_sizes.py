"""The sizes that `kafkawire estimate` prints, compared with those of a broker in virtual time and
with a file of SQLite.

Covers: kafkawire.cli.estimate.

A mebibyte of the merge plan is a kibibyte here, so that hours contain gigabytes.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.log.segments.merge import plan as mergeplan
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.offsets.catalog.port import (
    LIVE,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    Swap,
    TierRow,
    pack_ranges,
)
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from kafkawire.testing import BrokerProcess
from kafkawire.tiering.cost import sizes as model
from kafkawire.tiering.cost.estimate import Machine, TopicLoad
from kafkawire.tiering.cost.prices import TABLES
from kafkawire.tiering.cost.sizes import Sizes, sizes, stored_bytes
from tests.kit.client import batch
from tests.kit.log.logs import FOLDER
from tests.kit.offsets.rows import state
from tests.kit.tier.world import TierProcess, TierWorld

PRICES = TABLES["aws-s3-standard"]
NOW_MS = 1_790_000_000_000
SCALE = 1 << 10
MACHINE = Machine(
    journal_bytes=1 << 17,
    journal_roll_ms=60_000,
    hot_bytes=1 << 17,
    recycle_bytes=1 << 18,
    check_interval_ms=60_000,
)
WORLD = {
    "journal_bytes": MACHINE.journal_bytes,
    "journal_entries": 1 << 20,
    "journal_roll_ms": MACHINE.journal_roll_ms,
    "cut_interval_ms": MACHINE.cut_interval_ms,
    "hot_bytes": MACHINE.hot_bytes,
    "recycle_bytes": MACHINE.recycle_bytes,
    "file_delete_delay_ms": MACHINE.file_delete_delay_ms,
    "log_flush_offset_checkpoint_interval_ms": 600_000,
    "log_retention_check_interval_ms": MACHINE.check_interval_ms,
    "log_cleaner_backoff_ms": 600_000,
    "segment_dead_max_ms": 43_200_000,
    "tier_part_bytes": MACHINE.part_bytes,
    "tier_manifest_fold": MACHINE.manifest_fold,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The merge plan, scaled down a thousand times."""
    for name in ("MIB", "TWICE_BYTES", "INDEX_BYTES"):
        monkeypatch.setattr(mergeplan, name, getattr(mergeplan, name) // SCALE)
    mergeplan.limits_of.cache_clear()
    yield
    mergeplan.limits_of.cache_clear()


@dataclass
class Found:
    """Measurements of a broker once retention deletes: means over its last part."""

    bytes_per_s: float
    kind: str
    journal_bytes: float
    segment_bytes: float
    segments: float
    mappings: float


def broker(partitions: int, record_bytes: int, gap_s: int, run_s: int, **topic: Any) -> Found:
    """Produce records all the time; measure in the last third."""
    world = TierWorld(5, **WORLD)
    process = TierProcess(world)
    samples: list[tuple[float, ...]] = []
    result: list[Found] = []

    def sample() -> tuple[float, ...]:
        files = {
            path: len(node.data) for path, node in world.fs.files.items() if path.startswith(FOLDER)
        }
        segments = process.log.segments.store.by_id.values()
        return (
            sum(size for path, size in files.items() if "/journals/" in path),
            sum(size for path, size in files.items() if "/segments/" in path),
            sum(each.row.state == LIVE for each in segments),
            sum(len(one.segments.length) for one in process.log.partitions.values()),
        )

    async def main() -> None:
        await process.start()
        made = await process.create("t", partitions, **topic)
        begun, appended = process.loop.now, process.log.commit_log.appended_bytes
        while process.loop.now < begun + run_s:
            for partition in made:
                process.send(partition, [(b"k", bytes(record_bytes))])
            await process.env.sleep(gap_s)
            if process.loop.now > begun + run_s * 2 / 3:
                samples.append(sample())
        rate = (process.log.commit_log.appended_bytes - appended) / run_s
        means = [sum(column) / len(samples) for column in zip(*samples, strict=True)]
        result.append(Found(rate, retention_class(made[0].config), *means))
        await process.close()

    process.run(main)
    return result[0]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("partitions", "record_bytes", "gap_s", "tier"),
    [
        (1, 5000, 5, {"remote_storage_enable": "false"}),
        (8, 500, 5, {"remote_storage_enable": "false"}),
        (4, 20_000, 2, {"remote_storage_enable": "false"}),  # journals are full before their time
        (4, 500, 10, {"local_retention_ms": "600000", "tiering_max_lag_ms": "120000"}),
    ],
)
def test_sizes_are_those_of_a_broker(
    partitions: int, record_bytes: int, gap_s: int, tier: dict[str, str]
) -> None:
    found = broker(partitions, record_bytes, gap_s, 9000, retention_ms="3600000", **tier)
    copies = "local_retention_ms" in tier
    load = TopicLoad(
        "t", partitions, found.bytes_per_s, copies, int(tier.get("tiering_max_lag_ms", 0)), 1,
        1 << 30, 3_600_000, found.kind, int(tier.get("local_retention_ms", -1)),
    )  # fmt: skip
    said = sizes([load], MACHINE, PRICES)
    assert found.journal_bytes <= said.journal_bytes <= 2 * found.journal_bytes
    assert said.segment_bytes == pytest.approx(found.segment_bytes, rel=0.15)
    assert said.segments == pytest.approx(found.segments, rel=0.5)
    mappings = (said.rows_per_partition - model.PARTITION_ROWS) * partitions
    assert mappings == pytest.approx(found.mappings, rel=0.5)


@pytest.mark.parametrize(
    ("topics", "partitions", "segments", "in_tier"),
    [(20, 1, 200, True), (50, 10, 20, True), (50, 10, 40, False), (500, 1, 2, False)],
)
async def test_rows_take_the_bytes_of_the_model(
    topics: int, partitions: int, segments: int, in_tier: bool, tmp_path: Path
) -> None:
    path = tmp_path / "metadata.db"
    store = SqlMetadata(f"sqlite:///{path}")
    await store.open()
    await store.register_broker(1, {}, None)
    made = await store.create_topics(
        [NewTopic(f"a-topic-of-usual-name-{at}", [1] * partitions) for at in range(topics)]
    )
    numbers = [row.number for info in made for row in info.partitions]
    storage = SqlStorage(store, 1, lambda: NOW_MS)
    await storage.save_tier(TierRow(0, "s3://bucket/prefix", 1, NOW_MS, 1))
    for at in range(segments):
        await add_segment(storage, numbers, at, in_tier)
    await storage.save_checkpoint(Checkpoint(1, 77, [state(each, 1 << 30) for each in numbers]))
    await store.close()
    with sqlite3.connect(path) as database:
        (used,) = database.execute("PRAGMA page_count").fetchone()
        (free,) = database.execute("PRAGMA freelist_count").fetchone()
    database.close()
    said: float = model.EMPTY_BYTES + topics * model.TOPIC_BYTES
    said += len(numbers) * model.PARTITION_BYTES
    said += segments * model.segment_rows(len(numbers), in_tier)
    assert said == pytest.approx((used - free) * model.PAGE_BYTES, rel=0.25)


async def add_segment(storage: SqlStorage, numbers: list[int], at: int, in_tier: bool) -> None:
    """Store the rows of a segment of all these partitions, as a cut and an upload do."""
    row = SegmentRow(os.urandom(16), 1, NOW_MS, retention_class="delete/tiered/2^30ms")
    (row.id,) = await storage.start_segments([row])
    row.size_bytes = row.live_bytes = 16 << 20
    row.max_timestamp = NOW_MS
    first, end = (1 << 20) + at * 100_000, (1 << 20) + (at + 1) * 100_000
    mappings = [
        SegmentRange(each, row.id, first, end, 1 << 20, 1 << 20, 1 << 23, 5000, 123_456_789,
                     NOW_MS, 1000, 100_000, NOW_MS + 1_000_000_000)
        for each in numbers
    ]  # fmt: skip
    await storage.finish_segments(Swap([(row, mappings)]))
    if in_tier:
        ranges = pack_ranges([(each, first, end) for each in numbers])
        thing = ObjectRow(row.uuid, row.id, 1, 0, 0, row.size_bytes, NOW_MS, 0, ranges)
        await storage.start_objects([thing], dict.fromkeys(numbers, end))
        await storage.finish_objects([row.uuid], dict.fromkeys(numbers, end))


def test_stored_bytes_are_those_of_batches() -> None:
    for count, size_bytes in ((1, 100), (50, 1000), (500, 20)):
        made = batch(*[b"v" * size_bytes] * count)
        assert stored_bytes(count, size_bytes, count, 1) == pytest.approx(len(made), rel=0.06)


def test_records_without_retention_have_no_bound() -> None:
    kept = sizes([TopicLoad("t", 1, 1e6, False, retention_ms=-1)], Machine(), PRICES)
    assert (kept.segment_bytes, kept.disk_bytes, kept.planned_bytes) == (-1, -1, -1)
    assert kept.metadata_bytes > 0


def test_disk_is_needed_for_retention_or_for_local_retention() -> None:
    def disk(**load: Any) -> Sizes:
        return sizes([TopicLoad("t", 10, 1e6, **load)], Machine(), PRICES)

    local = disk(copies=False, kind="delete/local/2^30ms")
    assert local.segment_bytes == pytest.approx(7 * 86.4e9, rel=0.02)
    tiered = disk(local_ms=3_600_000)
    assert tiered.segment_bytes == pytest.approx(3.6e9, rel=0.2)
    assert tiered.segments > local.segments  # objects are smaller than local segments
    assert local.planned_bytes * 0.85 == pytest.approx(local.disk_bytes + (512 << 20))


def typed(*words: str) -> Any:
    result = CliRunner().invoke(app, ["estimate", "--json", *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_command_estimates_what_is_typed() -> None:
    usual = typed("--rate", "1MB/s", "--partitions", "12")
    assert usual["planned_bytes"] > usual["disk_bytes"] > 7 * 86.4e9
    week, day = typed("--rate", "1MB/s"), typed("--rate", "1MB/s", "--set", "retention.ms=1d")
    assert day["segment_bytes"] == pytest.approx(week["segment_bytes"] / 7, rel=0.02)
    hour = typed(
        "--rate", "1MB/s", "--tier", "s3://bucket/prefix", "--set", "local.retention.ms=1h"
    )
    assert hour["disk_bytes"] < day["disk_bytes"] / 10
    size = ("--record-rate", "1000", "--record-size", "991")
    assert typed(*size)["assumed"]["bytes_per_s"] == pytest.approx(1e6, rel=0.01)
    small = typed(*size, "--compression-ratio", "4")
    assert small["assumed"]["bytes_per_s"] == pytest.approx(1e6 / 4, rel=0.01)


@pytest.mark.real
def test_broker_starts_with_the_memory_of_the_model(tmp_path: Path) -> None:
    # An environment of its own: the broker is a new process, not a fork of the tests' imports.
    with BrokerProcess(tmp_path / "data", environ={"KAFKAWIRE_LOG_LEVEL": "info"}) as broker:
        status = Path(f"/proc/{broker.pid}/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    assert int(kib) << 10 == pytest.approx(model.START_MEMORY_BYTES, rel=0.25)
