"""Write amplification of a tiered broker, in virtual time, with any lag: compared with the bounds
and with `kafkawire tier estimate`.

A mebibyte of the merge plan is a kibibyte here, so that an hour contains gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kafkawire.log.segments.merge import plan as mergeplan
from kafkawire.offsets.catalog.port import LIVE
from kafkawire.tiering.cost.estimate import DAY_S, Machine, TopicLoad, estimate
from kafkawire.tiering.cost.prices import TABLES
from tests.kit.tier.world import TierProcess, TierWorld

SCALE = 1 << 10
KIND = "delete/tiered/ever"
WORLD = {
    "journal_bytes": 1 << 20,
    "journal_entries": 1 << 20,
    "journal_roll_ms": 600_000,
    "cut_interval_ms": 1000,
    "hot_bytes": 1 << 26,
    "log_flush_offset_checkpoint_interval_ms": 600_000,
    "log_retention_check_interval_ms": 600_000,
    "log_cleaner_backoff_ms": 600_000,
    "segment_dead_max_ms": 43_200_000,
    "file_delete_delay_ms": 60_000,
    "tier_delete_delay_ms": 1000,
    "tier_manifest_fold": 64,
    "tier_part_bytes": 16 << 20,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The merge plan, scaled down a thousand times."""
    for name in ("MIB", "TWICE_BYTES", "INDEX_BYTES"):
        monkeypatch.setattr(mergeplan, name, getattr(mergeplan, name) // SCALE)
    mergeplan.limits_of.cache_clear()
    yield
    mergeplan.limits_of.cache_clear()


@dataclass
class Found:
    """Measurements of a broker: bytes of batches a second that were produced, how often one was
    written, the most objects for each GiB (as scaled), and requests and bytes a day."""

    bytes_per_s: float
    amplification: float
    live_per_gib: float
    merges: int
    downloads: int
    object_puts: float
    manifest_puts: float
    gets: float


def live(process: TierProcess) -> float:
    rows = [segment.row for segment in process.log.segments.store.by_id.values()]
    here = [row for row in rows if row.state == LIVE and row.object]
    size_bytes = sum(row.live_bytes for row in here)
    return len(here) / max(1.0, size_bytes * SCALE / (1 << 30))


def broker(lag_ms: int, record_bytes: int, gap_s: int, run_s: float, **topic: Any) -> Found:
    """Produce records all the time; return the measurements."""
    world = TierWorld(3, **WORLD)
    process = TierProcess(world)
    found: list[Found] = []

    async def main() -> None:
        await process.start()
        lag: dict[str, Any] = {"tiering_max_lag_ms": str(lag_ms), "tiering_min_object_bytes": "1"}
        (partition,) = await process.create("t", retention_ms="-1", **lag, **topic)
        begun, most = process.loop.now, 0.0
        world.bucket.calls.clear()
        while process.loop.now < begun + run_s:
            process.send(partition, [(b"k", bytes(record_bytes))])
            await process.env.sleep(gap_s)
            most = max(most, live(process))
        cut_bytes = sum(partition.segments.length)
        rewriter, files = process.log.segments.rewriter, process.tiering.local.files
        kinds = [(call.kind, call.key.partition("/")[0]) for call in world.bucket.calls]
        a_day = DAY_S / run_s
        found.append(
            Found(
                cut_bytes / run_s,
                1 + rewriter.merged_bytes / cut_bytes,
                most,
                rewriter.merges,
                files.downloads,
                kinds.count(("put", "segments")) * a_day,
                kinds.count(("put", "manifest")) * a_day,
                sum(kind == "get" for kind, _ in kinds) * a_day,
            )
        )
        await process.close()

    process.run(main)
    return found[0]


@pytest.mark.slow
def test_merges_are_few_and_include_remote_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mergeplan, "MAX_SMALL", 4)
    monkeypatch.setitem(WORLD, "file_delete_delay_ms", 1000)
    found = broker(5_000, 200, 5, 120, local_retention_ms="1")
    assert found.merges >= 2
    assert found.downloads > 0
    assert found.amplification < 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lag_ms", "record_bytes", "gap_s", "run_s", "local_ms"),
    [
        (5_000, 20, 1, 1800, "-2"),  # a hundred cuts are far from a target
        (5_000, 400, 1, 900, "1000"),
        (30_000, 100, 2, 4000, "1000"),
        (300_000, 20, 20, 30_000, "-2"),
    ],
)
def test_bounds_and_estimate_hold_for_any_lag(
    lag_ms: int, record_bytes: int, gap_s: int, run_s: float, local_ms: str
) -> None:
    found = broker(lag_ms, record_bytes, gap_s, run_s, local_retention_ms=local_ms)
    assert found.merges > 0
    assert found.amplification < 3
    assert found.live_per_gib < 200
    local = -1 if local_ms == "-2" else int(local_ms)
    load = TopicLoad("t", 1, found.bytes_per_s, True, lag_ms, 1, 1 << 30, -1, KIND, local)
    said = estimate([load], Machine(journal_bytes=1 << 20), TABLES["aws-s3-standard"])
    assert said.objects + said.merge_puts == pytest.approx(found.object_puts, rel=0.2)
    assert said.manifest_puts == pytest.approx(found.manifest_puts, rel=0.2)
    not_folded = 64 * DAY_S / run_s
    assert said.gets == pytest.approx(found.gets, rel=0.2, abs=not_folded)
    assert said.amplification == pytest.approx(found.amplification, rel=0.2)
