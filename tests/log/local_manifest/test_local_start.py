"""When a start trusts the local manifest: after a clean end, a crash, damage."""

from __future__ import annotations

import copy
from collections.abc import Callable
from unittest.mock import patch

import pytest

from kafkawire.manifest.keys import sequence_of
from kafkawire.manifest.reader import NoManifest
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.store import MetadataError
from tests.kit.log.local_manifest import (
    ManifestWorld,
    at_once,  # noqa: F401  (a fixture, by name)
    begun,
    cut_short,
    flip,
    read_local,
    remove,
)
from tests.kit.log.logs import FOLDER


async def test_manifest_is_trusted_after_clean_end() -> None:
    async with begun(2) as world:
        await world.complete_manifest()
        await world.topic("more")
        await world.fill(world.find("t"), 40)
        await world.cut()
        await world.end()  # the last changes were not written when it began
        left = world.states()
        await world.start()
        await world.complete_manifest()
        assert world.states() == left
        await world.topic("others")
        assert "others" in (await world.complete_manifest()).topics
        assert set(left) < set(world.names())


@pytest.mark.parametrize("power", [False, True])
async def test_manifest_is_rebuilt_after_crash(power: bool) -> None:
    async with begun(2) as world:
        before = await world.complete_manifest()
        await world.restart()
        await world.crash(power)
        after = await world.complete_manifest()
        assert after.sequence > before.sequence
        numbers = [sequence_of(f"manifest/{name}") or 0 for name in world.names()]
        assert not [number for number in numbers if 0 < number <= before.sequence]


@pytest.mark.slow
@pytest.mark.parametrize("harm", [flip, cut_short, remove])
async def test_damaged_manifest_is_rebuilt(harm: Callable[[ManifestWorld, str], None]) -> None:
    async with begun() as world:
        await world.complete_manifest()
        await world.end()
        for at in range(len(world.names())):
            name = world.names()[at]
            harm(world, name)
            await world.start()
            await world.complete_manifest()
            await world.end()
            assert name in ("current", "ended") or name not in world.names()


async def test_missing_manifest_folder_is_rebuilt() -> None:
    async with begun() as world:
        await world.complete_manifest()
        await world.end()
        for name in world.names():
            remove(world, name)
        with pytest.raises(NoManifest):
            read_local(world.fs, FOLDER)
        await world.start()
        await world.complete_manifest()


async def test_mark_of_older_end_is_not_trusted() -> None:
    """Its counts match, but a process in between wrote no mark."""
    async with begun() as world:
        await world.complete_manifest()
        await world.end()
        mark = world.states()["ended"]
        await world.start()
        await world.find("t").delete_records(3)
        await world.log.close()  # without the manifest's: as if it could not be written
        await world.abandon()
        world.fs.kill()
        assert world.states()["ended"] == mark
        await world.start()
        assert world.log.after_clean_end
        await world.complete_manifest()


async def test_foreign_change_of_metadata_is_detected() -> None:
    async with begun() as world:
        await world.complete_manifest()
        await world.end()
        await world.metadata.open()
        await world.metadata.create_topics([NewTopic("by hand", [1], {})])
        await world.start()
        assert "by hand" in (await world.complete_manifest()).topics


async def test_restored_older_metadata_do_not_match_mark() -> None:
    """A backup of SQL was restored: it does not have the deletion, but has the same topics."""
    async with begun() as world:
        await world.complete_manifest()
        before = copy.deepcopy(world.database)
        partition = world.find("t")
        await world.fill(partition, 3)
        await partition.delete_records(3)
        await world.complete_manifest()
        await world.end()
        world.database = before
        await world.start()
        row = (await world.complete_manifest()).get_partition(world.find("t").number)
        assert row is not None
        assert row.log_start == world.find("t").log_start == 0


async def test_change_after_mark_removes_it() -> None:
    async with begun() as world:
        await world.complete_manifest()
        await world.log.upkeep.stop()
        await world.manifest.close()
        assert "ended" in world.names()
        await world.find("t").delete_records(3)
        assert "ended" not in world.names()
        await world.log.close()
        await world.start()
        await world.complete_manifest()


async def test_transaction_with_unknown_result_leaves_no_mark() -> None:
    """Done in SQL, but the caller got an error: the next start must not trust the manifest."""
    async with begun() as world:
        await world.complete_manifest()
        save = world.storage.save_checkpoint

        async def done_and_lost(checkpoint: object) -> None:
            await save(checkpoint)  # type: ignore[arg-type]
            raise MetadataError("the connection was lost")

        with (
            patch.object(world.storage, "save_checkpoint", done_and_lost),
            pytest.raises(MetadataError),
        ):
            await world.log.checkpoints.move_log_starts({world.find("t").number: 3})
        await world.restart()
        assert world.find("t").log_start == 3
        await world.complete_manifest()
