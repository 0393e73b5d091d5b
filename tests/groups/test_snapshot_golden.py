"""Group snapshots of every version that users may have on their disks."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.coordination import snapshot
from kafkawire.groups.model.records import Offset
from tests.golden.make_groups import HERE, NEXT_OFFSET, PENDING, PLACE, RECORDS, TERM, packed, pair
from tests.kit.groups.log import Bench, FakeFs
from tests.kit.groups.transactions import stable_codes


def golden(version: int) -> Any:
    fs: Any = FakeFs()
    data = (HERE / f"groups-v{version}.snapshot").read_bytes()
    fs.files[PLACE.path] = bytearray(data)
    return fs


@pytest.mark.parametrize("version", [1, 2, 3])
def test_golden_snapshot_is_read_and_still_written(version: int) -> None:
    fs = golden(version)
    found = snapshot.read(fs, PLACE)
    assert found is not None
    assert found.next_offset == NEXT_OFFSET
    assert found.pairs == [pair(record) for record in RECORDS]
    expected = [(producer, late, *pair(record)) for producer, late, record in PENDING]
    assert found.pending == (expected if version > 1 else [])
    assert found.term == (TERM if version > 2 else None)
    assert packed(version) == bytes(fs.files[PLACE.path])


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_golden_snapshot_is_loaded(version: int) -> None:
    bench = Bench()
    bench.env.fs.files.update(golden(version).files)  # type: ignore[attr-defined]
    bench.partition.log_start = bench.partition.next_offset = NEXT_OFFSET
    bench.partition.leader_epoch = 3
    bench.env.clock.ms = TERM.taken_ms  # type: ignore[attr-defined]
    bench.partition.next_appended = bench.partition.high_watermark = NEXT_OFFSET
    await bench.coordinator.load()
    shard = bench.coordinator.shard
    assert set(shard.groups) == ({"g", "s", "only"} if version > 1 else {"g", "s"})
    assert shard.offsets.committed_offsets("g")["t"][0] == Offset(42, 3, "né", 1_700_000_000_001)
    unstable = await stable_codes(bench, "g", ("t", 0))
    assert unstable == [88 if version > 1 else 0]
    bench.coordinator.timers.clear()


@pytest.mark.parametrize("cut", [1, 5, 30, 60, 90])
def test_damaged_pending_section_is_refused(cut: int) -> None:
    fs = golden(2)
    data = fs.files[PLACE.path]
    del data[-cut:]
    assert snapshot.read(fs, PLACE) is None
