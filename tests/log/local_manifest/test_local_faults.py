"""The local manifest on a disk that is full, stops or loses writes: outdated at worst."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

from kafkawire.manifest.reader import NoManifest
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import DELETING, LIVE, SegmentRow
from tests.kit.env import memory_env
from tests.kit.log.local_manifest import (
    ManifestWorld,
    at_once,  # noqa: F401  (a fixture, by name)
    begun,
    flip,
    read_local,
)
from tests.kit.log.logs import FOLDER, read_all
from tests.kit.memfs import MemFile, MemFileSystem
from tests.kit.waiting import until

STRIDE = 1 if int(os.environ.get("SIM_SEEDS", "0")) >= 500 else 4
"""One of this many calls at which a crash is tried."""


async def test_swap_is_kept_if_only_its_verification_fails() -> None:
    """The transaction is done: its segment is live, and is in the manifest."""
    async with begun() as world:
        await world.complete_manifest()
        ask = world.storage.segments_by_id
        failed: list[list[int]] = []

        async def fail_once(ids: list[int]) -> list[SegmentRow]:
            if not failed:
                failed.append(ids)
                raise MetadataError("the database is locked")
            return await ask(ids)

        partition = world.find("t")
        await world.fill(partition, 40)
        with patch.object(world.storage, "segments_by_id", fail_once):
            await world.cut()
            await world.written()
        assert failed
        assert [row.state for row in await world.rows()] == [LIVE, LIVE]
        assert len((await world.complete_manifest()).objects) == 2
        await world.crash()
        assert len(await read_all(world.find("t"))) == 80


async def test_replaced_segments_are_removed_after_lost_response() -> None:
    async with begun(3) as world:
        await world.complete_manifest()
        ask, failed = world.storage.segments_by_id, list[list[int]]()

        async def fail_once(ids: list[int]) -> list[SegmentRow]:
            if len(ids) > 1 and not failed:
                failed.append(ids)
                raise MetadataError("the database is locked")
            return await ask(ids)

        with (
            patch("kafkawire.log.segments.merge.plan.MAX_SMALL", 2),
            patch.object(world.storage, "segments_by_id", fail_once),
        ):
            await world.log.segments.tend()
            await world.written()
        assert failed
        assert await world.storage.segments(1, (DELETING,), 10)
        await world.log.segments.tend()
        assert (await world.complete_manifest()).deleted


async def test_full_disk_makes_manifest_outdated_only() -> None:
    async with begun() as world:
        before = await world.complete_manifest()
        write = MemFile.pwritev

        def full(file: MemFile, buffers: list[bytes], position: int) -> int:
            if bytes(buffers[0][:8]) == b"KWMANIFS":
                raise OSError(28, "no space left on device")
            return write(file, buffers, position)

        with patch.object(MemFile, "pwritev", full):
            await world.topic("more")
            await world.fill(world.find("t"), 40)
            await world.cut()
            await until(lambda: world.manifest.failures > 1)
            assert read_local(world.fs, FOLDER).sequence == before.sequence
        manifest = await world.complete_manifest()
        assert "more" in manifest.topics
        assert len(manifest.objects) == 2


async def test_failed_rewrites_leave_no_files_on_full_disk() -> None:
    async with begun() as world:
        await world.complete_manifest()
        await world.crash(power=False)
        write, tries = MemFile.pwritev, []

        def full(file: MemFile, buffers: list[bytes], position: int) -> int:
            if b'"snapshot"' in bytes(buffers[0]):
                tries.append(len(world.names()))
                raise OSError(28, "no space left on device")
            return write(file, buffers, position)

        with patch.object(MemFile, "pwritev", full):
            await until(lambda: len(tries) > 4)
        assert len(set(tries[1:])) == 1
        await world.complete_manifest()


async def test_unfoldable_chain_is_rebuilt() -> None:
    with patch("kafkawire.log.local_manifest.maintenance.FOLDED_AFTER", 3):
        async with begun() as world:
            await world.complete_manifest()
            flip(world, next(name for name in world.names() if name.startswith("delta")))
            for at in range(4):
                await world.topic(f"more{at}")
                await world.written()
            await until(lambda: world.manifest.settled and not world.damaged)
            assert len((await world.complete_manifest()).topics) == 5


class Stopped(MemFileSystem):
    """A disk on which nothing of the manifest changes any more after a number of calls."""

    left = 1 << 30
    calls = 0

    def _may(self, path: str) -> None:
        if "/manifest/" in path:
            self.calls += 1
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "input/output error")

    def open(self, path: str, *, create: bool = False) -> MemFile:
        if create:
            self._may(path)
        return super().open(path, create=create)

    def rename(self, old: str, new: str) -> None:
        self._may(new)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._may(path)
        super().remove(path)


async def everything(world: ManifestWorld) -> None:
    """Cuts, a rewrite, deletions, a clean end and a start, folds."""
    partition = await world.begin()
    await world.fill(partition, 40)
    await world.cut()
    await world.topic("more", 2)
    await rest(world)
    await world.fill(partition, 40)
    await world.cut()
    await world.log.segments.tend()
    await rest(world)
    await partition.delete_records(20)
    await world.delete_topic("more")
    await world.restart()
    await rest(world)
    await world.topic("last")
    await rest(world)


async def rest(world: ManifestWorld) -> None:
    """Wait until everything is written, or nothing can be any more."""
    await until(lambda: world.manifest.settled or world.manifest.failures > 0)


async def run_until(left: int, power: bool) -> int:
    """Run the scenario with a disk that stops; the next process finds its state. Return the number
    of calls."""
    fs = Stopped()
    fs.left = left
    world = ManifestWorld(env=memory_env(fs))
    with (
        patch("kafkawire.log.segments.merge.plan.MAX_SMALL", 2),
        patch("kafkawire.log.local_manifest.maintenance.FOLDED_AFTER", 2),
    ):
        await everything(world)
        calls = fs.calls
        if not power:
            try:
                read_local(fs, FOLDER)
            except NoManifest:
                assert left < 20
        fs.left = 1 << 30
        await world.crash(power)
        await world.complete_manifest()
        await world.end()
    return calls


@pytest.mark.slow
async def test_crash_at_any_call_leaves_manifest_outdated_but_correct() -> None:
    calls = await run_until(1 << 30, False)
    assert calls > 30
    for left in range(0, calls, STRIDE):
        await run_until(left, power=bool(left // STRIDE % 2))
