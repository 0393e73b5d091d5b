"""Loads of a partition that another broker led: without a snapshot, and with an old one of our own.

A broker takes a snapshot, loses the partition, and leads it again after another broker has written
to it. The snapshot is used with all records after it, or not at all. The last test shows that the
others can fail.

Covers: kafkawire.coordination.loader, kafkawire.coordination.snapshot.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kafkawire.codec.batches import iter_batches, records
from kafkawire.coordination import snapshot
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.groups.snapshot import group_snapshot
from tests.groups.test_coordinator import stable_pair
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import Bench, FakeFs, fake_env
from tests.kit.groups.model import known

PLACE = group_snapshot("/groups", b"t" * 16, 0)
DAY_MS = 86_400_000


async def busy(seed: int = 1) -> Bench:
    """A coordinator with a history of groups and offsets, which has resigned."""
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    dice = random.Random(seed)
    for n in range(50):
        await bench.now(commit_of({("t", dice.randrange(9)): n}, group=f"s{dice.randrange(7)}"))
        await bench.now(commit_of({("u", dice.randrange(9)): n}, generation=1, member=leader))
    await bench.coordinator._store(0)
    assert PLACE.path in files(bench)
    bench.coordinator.resign()
    return bench


def files(bench: Bench) -> dict[str, bytearray]:
    assert isinstance(bench.env.fs, FakeFs)
    return bench.env.fs.files


class Other:
    """Another broker that leads the partition of a bench, from the next leader epoch on."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.own = bench.env
        bench.env = fake_env()
        bench.partition.leader_epoch += 1

    async def __aenter__(self) -> Bench:
        await self.bench.reload()
        return self.bench

    async def __aexit__(self, *failure: object) -> None:
        self.bench.coordinator.resign()
        self.bench.env = self.own
        self.bench.partition.leader_epoch += 1


async def gain(bench: Bench) -> dict[str, Any]:
    """Lead the partition again; the state that was loaded."""
    bench.coordinator = bench.make()
    bench.coordinator.start(gained=True)
    assert bench.coordinator._loading is not None
    await bench.coordinator._loading
    assert bench.active
    bench.coordinator.timers.clear()
    return known(bench.coordinator.shard)


async def truth(bench: Bench) -> dict[str, Any]:
    """The state that the log alone gives."""
    own, bench.env = bench.env, fake_env()
    bench.env.clock.ms = own.clock.now_ms()  # type: ignore[attr-defined]
    state = await gain(bench)
    bench.env = own
    return state


def forget_before(bench: Bench, offset: int) -> None:
    """Take the records below an offset from the log: a load that reads them finds nothing."""
    heads = [(next(iter_batches(batch))[1], batch) for batch in bench.partition.batches]
    bench.partition.batches = [batch for head, batch in heads if head.last_offset >= offset]


def cut(bench: Bench, offset: int) -> None:
    """End the log at an offset: what is after it was lost with the machine that had it."""
    heads = [(next(iter_batches(batch))[1], batch) for batch in bench.partition.batches]
    bench.partition.batches = [batch for head, batch in heads if head.last_offset < offset]
    ends = [head.last_offset + 1 for head, _ in heads if head.last_offset < offset]
    bench.partition.next_appended = bench.partition.next_offset = max(ends)
    bench.partition.high_watermark = bench.partition.next_offset


async def test_without_a_snapshot_the_log_gives_the_same_state() -> None:
    bench = await busy()
    files(bench).clear()
    assert await gain(bench) == await truth(bench)
    assert known(bench.coordinator.shard)["groups"]


async def combined() -> None:
    """The snapshot is combined with the records and tombstones of the other broker."""
    bench = await busy()
    end = bench.partition.next_offset
    async with Other(bench) as other:
        other.coordinator.forget_topic("u")
        other.log.commit()
        for n in range(9):
            await other.now(commit_of({("t", n): 1000 + n}, group="late"))
    expected = await truth(bench)
    forget_before(bench, end)
    assert await gain(bench) == expected
    offsets = known(bench.coordinator.shard)["offsets"]
    assert not any("u" in topics for topics in offsets.values())
    assert "late" in offsets


async def ahead_of_the_log() -> None:
    """The log ends before the snapshot: the file is removed before offsets are assigned again."""
    bench = await busy()
    cut(bench, bench.partition.next_offset - 20)
    bench.partition.leader_epoch += 1
    expected = await truth(bench)
    assert await gain(bench) == expected
    assert PLACE.path not in files(bench)


async def written_again() -> None:
    """The other broker began before the end of the snapshot, and has passed that end since."""
    bench = await busy()
    end = bench.partition.next_offset
    cut(bench, end - 20)
    async with Other(bench) as other:
        for n in range(60):
            await other.now(commit_of({("t", n % 9): 5000 + n}, group="again"))
    assert bench.partition.next_offset > end
    assert await gain(bench) == await truth(bench)


async def older_than_tombstones() -> None:
    """Compaction has removed the tombstones that the other broker wrote."""
    bench = await busy()
    end = bench.partition.next_offset
    clock: Any = bench.env.clock
    async with Other(bench) as other:
        other.coordinator.forget_topic("u")
        await other.now(commit_of({("t", 0): 7}, group="late"))
    compact(bench, end)
    clock.ms += DAY_MS
    state = await gain(bench)
    assert state == await truth(bench)
    assert not any("u" in topics for topics in state["offsets"].values())


def compact(bench: Bench, end: int) -> None:
    """Remove the tombstones from `end` on, and the records that they delete."""
    deleted: set[bytes | None] = set()
    kept: list[bytearray] = []
    for batch in reversed(bench.partition.batches):
        position, _ = next(iter_batches(batch))
        found = list(records(batch, position))
        gone = {bytes(each.key) for each in found if each.value is None and each.key is not None}
        deleted |= gone
        if not gone and not any(bytes(each.key or b"") in deleted for each in found):
            kept.insert(0, batch)
    assert deleted
    bench.partition.batches = kept


async def without_a_leader_epoch() -> None:
    """A snapshot of an earlier program may be from any time."""
    bench = await busy()
    found = snapshot.read(bench.env.fs, PLACE)
    assert found is not None
    end = bench.partition.next_offset
    snapshot.write(bench.env.fs, PLACE, found._replace(term=None))
    cut(bench, end - 20)
    async with Other(bench) as other:
        for n in range(60):
            await other.now(commit_of({("t", n % 9): 5000 + n}, group="again"))
    assert await gain(bench) == await truth(bench)


CASES = [
    combined,
    ahead_of_the_log,
    written_again,
    older_than_tombstones,
    without_a_leader_epoch,
]


@pytest.mark.parametrize("case", CASES)
async def test_an_own_snapshot(case: Callable[[], Awaitable[None]]) -> None:
    await case()


async def test_why_a_snapshot_is_ignored_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await written_again()
        await older_than_tombstones()
        await without_a_leader_epoch()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "before which a later leader epoch than its own, 0, begins" in lines[0]
    assert "tombstones which another leader wrote may have been removed" in lines[1]
    assert "it has no leader epoch, and another broker led the partition" in lines[2]


async def test_an_old_snapshot_of_the_same_leader_epoch_is_used() -> None:
    bench = await busy()
    expected = await truth(bench)
    clock: Any = bench.env.clock
    clock.ms += 30 * DAY_MS
    forget_before(bench, bench.partition.next_offset)
    bench.coordinator = bench.make()
    await bench.coordinator.load()
    assert known(bench.coordinator.shard) == expected
    bench.coordinator.timers.clear()


@pytest.mark.parametrize("case", [written_again, older_than_tombstones, without_a_leader_epoch])
async def test_a_load_that_trusts_every_snapshot_is_found(
    case: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionLoader, "_misfit", lambda *_, **__: "")
    with pytest.raises(AssertionError):
        await case()
