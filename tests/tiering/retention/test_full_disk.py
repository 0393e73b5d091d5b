"""A full disk releases files that are in the remote tier: the oldest, and no more than needed."""

from __future__ import annotations

import pytest

from tests.kit.tier.local import GRACE_MS, HOUR_MS, SEGMENTS, LocalWorld, two_uploaded


class Disk:
    """The volume of a world, of a size at which its segments use this share of it."""

    def __init__(self, world: LocalWorld, patch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.total = 1 << 40
        self.other = 0
        patch.setattr(world.fs, "free_bytes", self.free_bytes)

    def used(self) -> int:
        names = (f"{SEGMENTS}/{name}" for name in self.world.files())
        return self.other + sum(len(self.world.fs.files[name].data) for name in names)

    def free_bytes(self, path: str) -> tuple[int, int]:
        return self.total, self.total - self.used()


async def test_full_disk_releases_oldest_files_and_no_more_than_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded()
    await world.fill(world.find("t"), 40)
    await world.cut()
    disk = Disk(world, monkeypatch)
    sizes = [row.size_bytes for row in await world.rows()]
    assert len(sizes) == 3
    disk.total = 100_000_000
    disk.other = 89_000_000 - sum(sizes) + sizes[0]
    await world.local.relieve()
    assert await world.locals() == [False, True, True]
    assert len(world.files()) == 2, "at once"
    assert world.local.relieved_bytes == sizes[0]
    await world.local.relieve()
    assert await world.locals() == [False, True, True], "there is space"
    disk.other = 99_000_000
    await world.local.relieve()
    assert await world.locals() == [False, False, True], "the last one is not in the tier"


async def test_full_disk_releases_files_in_grace_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded(local_retention_ms=str(HOUR_MS))
    world.later(HOUR_MS + world.find("t").segments.end[0])
    await world.scan()
    assert await world.locals() == [False, True]
    disk = Disk(world, monkeypatch)
    disk.total, disk.other = 100_000_000, 89_000_000 - disk.used() + 1
    await world.local.relieve()
    assert await world.locals() == [False, True]
    assert len(world.files()) == 1


async def test_full_disk_keeps_files_in_use_or_of_local_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded()
    disk = Disk(world, monkeypatch)
    disk.total, disk.other = 1000, 1000
    world.find("t").config.tiered = False
    await world.local.relieve()
    assert await world.locals() == [True, True]
    world.find("t").config.tiered = True
    segment = world.log.segments.store.by_id[1]
    segment.pins += 1
    await world.local.relieve()
    assert await world.locals() == [False, False]
    assert len(world.files()) == 1
    segment.pins -= 1
    await world.scan()
    world.later(GRACE_MS)
    await world.scan()
    assert world.files() == []


async def test_full_disk_releases_files_before_refusing_produces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded()
    world.local.start()
    disk = Disk(world, monkeypatch)
    size = disk.used()
    disk.total = 100 * size
    disk.other = 98 * size
    await world.log.upkeep.disk.measure()
    assert world.files() == []
    assert world.log.commit_log.refusal is None or disk.other >= 97 * size
    disk.other = 96 * size
    await world.log.upkeep.disk.measure()
    assert world.log.commit_log.refusal is None
    await world.local.close()
    await world.local.close()
    assert world.log.segments.remote.relief is None
