"""The local manifest: what is in it, when it is written, what a start believes of it."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from kafkawire.manifest.keys import segment_key, sequence_of
from kafkawire.manifest.reader import NoManifest, read_manifest
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, NewTopic
from kafkawire.metadata.store import MetadataError
from log.manifest.local import ENDED
from offsets.storage import DELETING, LIVE, SegmentRow
from tests.kit.client import Client, batch
from tests.kit.env import memory_env
from tests.kit.localmanifest import ManifestWorld, read_local, rows_of
from tests.kit.localtier import GRACE_MS
from tests.kit.logs import FOLDER, read_all
from tests.kit.memfs import MemFile, MemFileSystem
from tests.kit.server import port_of, running
from tests.test_produce_fetch import produce

STRIDE = 1 if int(os.environ.get("SIM_SEEDS", "0")) >= 500 else 4
"""Of the lines at which a crash is tried."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for others does not."""
    monkeypatch.setattr("log.manifest.local.LINGER_S", 0.0)
    monkeypatch.setattr("log.manifest.local.RETRY_S", 0.001)


@asynccontextmanager
async def begun(cuts: int = 1) -> AsyncIterator[ManifestWorld]:
    """A broker with records of a topic in as many segments, and some in its journals."""
    world = ManifestWorld()
    partition = await world.begin()
    for _ in range(cuts):
        await world.fill(partition, 40)
        await world.cut()
    try:
        yield world
    finally:
        await world.end()


async def test_a_cut_is_in_the_manifest_and_what_is_not_cut_is_not() -> None:
    async with begun() as world:
        partition = world.find("t")
        manifest = await world.said()
        assert manifest.topics["t"].partitions == (partition.number,)
        assert manifest.state.cluster_id == world.catalog.cluster_id
        row = manifest.partition(partition.number)
        assert row is not None
        assert (row.log_start, row.end) == (0, partition.cut_offset)
        assert 0 < row.end < partition.next_offset
        assert len(row.epochs) > 1
        (uuid,) = [manifest.objects.uuid(0)]
        assert manifest.objects.segment(0) == uuid
        assert f"{FOLDER}/{segment_key(uuid)}" in world.fs.files


async def test_many_changes_are_one_delta_and_none_is_no_file() -> None:
    async with begun() as world:
        before = (await world.said()).sequence
        with patch("log.manifest.local.LINGER_S", 0.05):
            for at in range(50):
                await world.topic(f"more{at}")
            await world.fill(world.find("t"), 40)
            await world.cut()
            after = (await world.said()).sequence
        assert before < after < before + 10
        files = world.states()
        await asyncio.sleep(0.05)
        assert world.states() == files


async def test_topics_are_made_altered_and_deleted() -> None:
    async with begun() as world:
        await world.topic("more", 3)
        change = ConfigChange(TOPIC_RESOURCE, "t", "cleanup.policy", "compact")
        await world.metadata.alter_configs([change])
        world.catalog.apply_config(change)
        world.log.alter_topic(world.catalog.by_name["t"])
        manifest = await world.said()
        assert manifest.topics["t"].configs == {"cleanup.policy": "compact"}
        assert len(manifest.topics["more"].partitions) == 3
        number = world.find("t").number
        await world.delete_topic("t")
        manifest = await world.said()
        assert list(manifest.topics) == ["more"]
        assert manifest.partition(number) is None
        await world.log.segments.tend()
        assert len((await world.said()).objects) == 0


async def test_a_log_start_that_moves_is_said() -> None:
    async with begun(2) as world:
        partition = world.find("t")
        await partition.delete_records(45)
        row = (await world.said()).partition(partition.number)
        assert row is not None
        assert row.log_start == 45
        await partition.delete_records(partition.next_offset)
        row = (await world.said()).partition(partition.number)
        assert row is not None
        assert row.log_start == row.end == partition.next_offset


async def test_what_was_replaced_is_named_as_deleted_while_its_file_stays() -> None:
    async with begun(3) as world:
        before = await world.said()
        world.config.segment_dead_max_ms = 0
        with patch("log.segments.rewriteplan.SEGMENTS_PER_GIB", 1):
            world.log.segments.rewriter.note({world.find("t").number})
            await world.log.segments.tend()
        after = await world.said()
        assert len(after.objects) < len(before.objects)
        assert max(after.objects.generation) == 1
        now_ms = world.env.clock.now_ms()
        old = {before.objects.uuid(at) for at in range(len(before.objects))}
        gone = old - {after.objects.uuid(at) for at in range(len(after.objects))}
        assert gone
        assert gone == set(after.deleted)
        assert all(until >= now_ms + GRACE_MS for until in after.deleted.values())

        def get(key: str) -> bytes:  # whoever began before
            return bytes(world.fs.files[f"{FOLDER}/{key}"].data)

        number = world.find("t").number
        assert rows_of(get, before, number) == rows_of(get, after, number)


async def test_what_leaves_for_the_remote_tier_goes_from_it_and_comes_back() -> None:
    configs = {"remote_storage_enable": "true", "local_retention_ms": "1"}
    world = ManifestWorld()
    partition = await world.begin(**configs)
    await world.fill(partition, 40)
    await world.cut()
    assert len((await world.said()).objects) == 1
    await world.upload()
    world.later(10_000)
    await world.look()
    assert await world.locals() == [False]
    manifest = await world.said()
    assert len(manifest.objects) == 0
    (until,) = manifest.deleted.values()
    assert until == world.env.clock.now_ms() + GRACE_MS
    row = manifest.partition(partition.number)
    assert row is not None
    assert row.end == partition.cut_offset
    (segment,) = await world.rows()
    await world.storage.delete_objects([segment.object], 0)
    swapper = world.log.segments.swapper
    await swapper.update(lambda: world.storage.set_local([segment.id], True))
    manifest = await world.said()
    assert len(manifest.objects) == 1
    assert not manifest.deleted
    await world.end()


async def test_a_clean_end_is_believed_and_costs_nothing() -> None:
    async with begun(2) as world:
        await world.said()
        await world.topic("more")
        await world.fill(world.find("t"), 40)
        await world.cut()
        await world.end()  # the last changes were not written when it began
        left = world.states()
        await world.start()
        await world.said()
        assert world.states() == left
        await world.topic("others")
        assert "others" in (await world.said()).topics
        assert set(left) < set(world.names())


@pytest.mark.parametrize("power", [False, True])
async def test_after_a_crash_it_is_written_anew(power: bool) -> None:
    async with begun(2) as world:
        before = await world.said()
        await world.restart()
        await world.crash(power)
        after = await world.said()
        assert after.sequence > before.sequence
        numbers = [sequence_of(f"manifest/{name}") or 0 for name in world.names()]
        assert not [number for number in numbers if 0 < number <= before.sequence]


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never comes true")


def flip(world: ManifestWorld, name: str) -> None:
    data = world.fs.files[f"{FOLDER}/manifest/{name}"].data
    data[len(data) // 2] ^= 1


def cut_short(world: ManifestWorld, name: str) -> None:
    data = world.fs.files[f"{FOLDER}/manifest/{name}"].data
    del data[len(data) // 2 :]


def remove(world: ManifestWorld, name: str) -> None:
    del world.fs.files[f"{FOLDER}/manifest/{name}"]


@pytest.mark.parametrize("harm", [flip, cut_short, remove])
async def test_whatever_is_damaged_is_made_anew(harm: Callable[[ManifestWorld, str], None]) -> None:
    async with begun() as world:
        await world.said()
        await world.end()
        for at in range(len(world.names())):
            name = world.names()[at]
            harm(world, name)
            await world.start()
            await world.said()
            await world.end()
            assert name in ("current", "ended") or name not in world.names()


async def test_a_folder_that_is_gone_is_made_anew() -> None:
    async with begun() as world:
        await world.said()
        await world.end()
        for name in world.names():
            remove(world, name)
        with pytest.raises(NoManifest):
            read_local(world.fs, FOLDER)
        await world.start()
        await world.said()


async def test_a_mark_of_an_older_end_is_not_believed() -> None:
    """Its counts fit, but a process came between that wrote no mark."""
    async with begun() as world:
        await world.said()
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
        await world.said()


async def test_what_another_hand_did_to_the_metadata_is_seen() -> None:
    async with begun() as world:
        await world.said()
        await world.end()
        await world.metadata.open()
        await world.metadata.create_topics([NewTopic("by hand", [1], {})])
        await world.start()
        assert "by hand" in (await world.said()).topics


async def test_metadata_of_an_earlier_time_are_not_those_of_the_mark() -> None:
    """A backup of SQL was put back: it knows nothing of the deletion, but has the same topics."""
    async with begun() as world:
        await world.said()
        before = copy.deepcopy(world.database)
        partition = world.find("t")
        await world.fill(partition, 3)
        await partition.delete_records(3)
        await world.said()
        await world.end()
        world.database = before
        await world.start()
        row = (await world.said()).partition(world.find("t").number)
        assert row is not None
        assert row.log_start == world.find("t").log_start == 0


async def test_what_changes_after_the_mark_takes_it_away() -> None:
    async with begun() as world:
        await world.said()
        await world.log.upkeep.stop()
        await world.manifest.close()
        assert "ended" in world.names()
        await world.find("t").delete_records(3)
        assert "ended" not in world.names()
        await world.log.close()
        await world.start()
        await world.said()


async def test_a_transaction_of_unknown_fate_leaves_no_mark() -> None:
    """Done in SQL, and nobody was told: the next start must not believe the manifest."""
    async with begun() as world:
        await world.said()
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
        await world.said()


async def test_a_swap_is_not_taken_back_when_only_the_look_at_it_fails() -> None:
    """The transaction is done: its segment lives, and is in the manifest."""
    async with begun() as world:
        await world.said()
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
        assert len((await world.said()).objects) == 2
        await world.crash()
        assert len(await read_all(world.find("t"))) == 80


async def test_replaced_segments_whose_end_was_not_answered_go_all_the_same() -> None:
    async with begun(3) as world:
        await world.said()
        ask, failed = world.storage.segments_by_id, list[list[int]]()

        async def fail_once(ids: list[int]) -> list[SegmentRow]:
            if len(ids) > 1 and not failed:
                failed.append(ids)
                raise MetadataError("the database is locked")
            return await ask(ids)

        with (
            patch("log.segments.rewriteplan.SEGMENTS_PER_GIB", 1),
            patch.object(world.storage, "segments_by_id", fail_once),
        ):
            world.log.segments.rewriter.note({world.find("t").number})
            await world.log.segments.tend()
            await world.written()
        assert failed
        assert await world.storage.segments(1, (DELETING,), 10)
        await world.log.segments.tend()
        assert (await world.said()).deleted


async def test_a_full_disk_makes_it_stale_and_nothing_else() -> None:
    async with begun() as world:
        before = await world.said()
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
        manifest = await world.said()
        assert "more" in manifest.topics
        assert len(manifest.objects) == 2


async def test_a_full_disk_does_not_fill_up_with_tries_to_write_it_anew() -> None:
    async with begun() as world:
        await world.said()
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
        await world.said()


async def test_deltas_are_folded_and_what_was_folded_goes_later() -> None:
    with patch("log.manifest.foldlocal.FOLDED_AFTER", 3):
        async with begun() as world:
            for at in range(8):
                await world.topic(f"more{at}")
                await world.said()
            snapshots = [name for name in world.names() if name.startswith("snapshot")]
            assert len(snapshots) >= 3
            world.later(600_001)
            for at in range(8, 14):
                await world.topic(f"more{at}")
                await world.said()
            assert not set(snapshots[:3]) & set(world.names())
            assert len(world.names()) < 14
            await world.restart()
            assert len((await world.said()).topics) == 15


async def test_a_chain_that_cannot_be_folded_is_made_anew() -> None:
    with patch("log.manifest.foldlocal.FOLDED_AFTER", 3):
        async with begun() as world:
            await world.said()
            flip(world, next(name for name in world.names() if name.startswith("delta")))
            for at in range(4):
                await world.topic(f"more{at}")
                await world.written()
            await until(lambda: world.manifest.settled and not world.damaged)
            assert len((await world.said()).topics) == 5


class Stopped(MemFileSystem):
    """A disk on which nothing of the manifest changes any more after some calls."""

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
    world.log.segments.rewriter.note({partition.number})
    await world.log.segments.tend()
    await rest(world)
    await partition.delete_records(20)
    await world.delete_topic("more")
    await world.restart()
    await rest(world)
    await world.topic("last")
    await rest(world)


async def rest(world: ManifestWorld) -> None:
    """All is written, or nothing can be any more."""
    await until(lambda: world.manifest.settled or world.manifest.failures > 0)


async def run_until(left: int, power: bool) -> int:
    """The scenario with a disk that stops; the next process finds what there was. The calls."""
    fs = Stopped()
    fs.left = left
    world = ManifestWorld(env=memory_env(fs))
    with (
        patch("log.segments.rewriteplan.SEGMENTS_PER_GIB", 1),
        patch("log.manifest.foldlocal.FOLDED_AFTER", 2),
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
        await world.said()
        await world.end()
    return calls


async def test_a_crash_at_any_line_leaves_it_stale_and_never_wrong() -> None:
    calls = await run_until(1 << 30, False)
    assert calls > 30
    for left in range(0, calls, STRIDE):
        await run_until(left, power=bool(left // STRIDE % 2))


async def test_a_real_broker_writes_one_where_spark_finds_it(tmp_path: Path) -> None:
    async with running(tmp_path, journal_roll_ms="50", cut_interval_ms="20") as server:
        client = await Client.connect(port_of(server))
        await server.broker.topics.create([CreatableTopic("t", 1, 1)])
        await client.call(produce("t", batch(b"one", b"two")), 7)
        home = tmp_path / "brokers" / str(server.broker.node_id)

        def get(key: str) -> bytes:
            return (home / key).read_bytes()

        for _ in range(500):
            await asyncio.sleep(0.02)
            if (home / "manifest/current").exists():
                manifest = read_manifest(get)
                if len(manifest.objects) and not [*home.glob("manifest/*.new")]:
                    break
        (number,) = manifest.topics["t"].partitions
        assert rows_of(get, manifest, number) == [(0, b"one"), (1, b"two")]
        await client.close()
    assert json.loads((home / ENDED).read_bytes())["topics"] == 1


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path, local_manifest_enable="false") as server:
        assert server.broker.manifest is None
        assert server.broker.log.hooks.listeners == []
    home = tmp_path / "brokers" / str(server.broker.node_id)
    assert "manifest" not in [path.name for path in home.iterdir()]
