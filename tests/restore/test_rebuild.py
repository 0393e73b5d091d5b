"""Metadata rebuilt from journals and segments: every acknowledged record is served, and nothing
else.

Covers: kafkawire.restore.data_folder, kafkawire.restore.segment_files,
kafkawire.cli.restore.from_log, kafkawire.restore.insert.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.codec.types import Buffer
from kafkawire.fsck.check import check
from kafkawire.log.journal.losses import Damage, Loss
from kafkawire.log.journal.scan import Gap
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead, aborted_in
from kafkawire.metadata.catalog import Catalog, ConfigChange
from kafkawire.progress import silent
from kafkawire.restore.data_folder import gather_from_folder
from kafkawire.restore.evidence import (
    FolderEvidence,
    PartitionSeen,
    SegmentSeen,
    SegmentShare,
    TopicSeen,
)
from kafkawire.restore.insert import enter_offsets
from kafkawire.restore.plan import RestorePlan, plan_restore
from kafkawire.restore.segment_files import rewrite_folder
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, produce
from tests.kit.env import EPOCH_MS
from tests.kit.log.cutting import cut, expected, fill, started
from tests.kit.log.logs import FOLDER, World, batch, read_all
from tests.kit.log.transactional import Producer, committed_records
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.waiting import settle, wait_until

SQL_ONLY = 2
"""Sentences on what a log does not record."""


async def rebuilt(world: World) -> RestorePlan:
    """Delete the database, and rebuild it like the command."""
    seen = gather_from_folder(world.env, FOLDER, silent)
    made = plan_restore(seen, 1)
    made.cluster_id = seen.oldest_cluster()
    conversion = None
    if made.mixed:
        conversion = rewrite_folder(world.env, FOLDER, seen, made, 1, silent)
        conversion.publish()
    database = MemoryDatabase(seed=1)
    catalog = database.catalog = Catalog("made again")
    for info in made.topics:
        catalog.add_topic(info)
    database.next_partition = made.next_partition
    database.next_producer_id = made.next_producer_id
    world.database = database
    world.metadata = MemoryMetadata(database)
    world.catalog = await world.metadata.open()
    await world.metadata.register_broker(1, {}, None)
    world.storage = world.metadata.storage(world.env.clock.now_ms)
    await enter_offsets(world.env, world.storage, FOLDER, made)
    database.deleted_partitions = {p.number for info in made.deleted for p in info.partitions}
    if conversion is not None:
        conversion.set_aside()
    return made


async def clean(world: World) -> bool:
    report = await check(world.env, FOLDER, 1, world.catalog, world.storage, world.metadata)
    assert report.clean, [problem.text for problem in report.problems]
    return report.clean


@pytest.mark.parametrize("power", [None, True, False])
async def test_topics_settings_and_records_are_restored(power: bool | None) -> None:
    world = await started(2)
    await world.topic("set", retention_ms="12345")
    await fill(world.find("t0"), 60)
    await fill(world.find("t1"), 60)
    await cut(world)
    await fill(world.find("t0"), 30)
    names = sorted(world.catalog.by_name)
    ids = {name: world.catalog.by_name[name].id for name in names}
    epoch = world.find("t0").leader_epoch
    assert world.find("t0").cut_offset > 0
    if power is None:
        await world.log.close()
    else:
        await world.abandon()
        world.fs.crash() if power else world.fs.kill()
    made = await rebuilt(world)
    assert len(made.doubts) == SQL_ONLY, made.texts()
    assert made.shares
    await clean(world)
    await world.start()
    assert {name: info.id for name, info in world.catalog.by_name.items()} == ids
    assert world.catalog.by_name["set"].configs == {"retention.ms": "12345"}
    assert await read_all(world.find("t0")) == expected(0, 90)
    assert await read_all(world.find("t1")) == expected(0, 60)
    assert world.find("t0").cut_offset > 0, "segments are read as segments"
    assert world.find("t0").leader_epoch > epoch
    await fill(world.find("t0"), 1)
    assert await read_all(world.find("t0")) == expected(0, 91)
    await world.log.close()
    await clean(world)


async def test_deleted_topic_is_not_restored_nor_its_numbers_reused() -> None:
    world = await started(2)
    await fill(world.find("t1"), 60)
    await cut(world)
    number = world.find("t1").number
    info = world.catalog.by_name["t1"]
    await world.metadata.delete_topics([info.id])
    world.log.remove_topic(world.catalog.remove_topic(info.id))
    await world.log.commit_log.wait_until_committed()
    await world.topic("t1")
    await world.log.close()
    made = await rebuilt(world)
    assert sorted(t.name for t in made.topics) == ["t0", "t1"]
    assert len(made.doubts) == SQL_ONLY, made.texts()
    await world.start()
    again = world.find("t1")
    assert again.number != number
    assert again.next_offset == 0
    (more,) = await world.topic("more")
    assert more.number > max(number, again.number)


async def test_newest_settings_are_restored() -> None:
    world = await started(1)
    change = ConfigChange(2, "t0", "retention.ms", "777")
    await world.metadata.alter_configs([change])
    world.catalog.apply_config(change)
    world.log.alter_topic(world.catalog.by_name["t0"])
    await world.log.commit_log.wait_until_committed()
    await world.log.close()
    (topic,) = (await rebuilt(world)).topics
    assert topic.configs == {"retention.ms": "777"}


async def test_log_start_is_restored_where_recorded() -> None:
    world = await started(1)
    await fill(world.find("t0"), 60)
    await cut(world)
    await world.log.commit_log.save_log_starts({world.find("t0").number: 20})
    await fill(world.find("t0"), 40)  # rolls: the naming frame of the next journal has it
    await world.log.close()
    made = await rebuilt(world)
    assert made.checkpoints[0].log_start == 20
    await clean(world)
    await world.start()
    assert (await read_all(world.find("t0"))) == expected(20, 100)


async def test_producer_state_is_restored() -> None:
    world = await started(1)
    partition = world.find("t0")
    for sequence in range(60):
        await_ = batch(bytes(500), producer_id=4000, producer_epoch=0, base_sequence=sequence)
        partition.append(await_, EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
        if sequence == 40:
            await cut(world)
    await world.log.close()
    made = await rebuilt(world)
    assert made.next_producer_id > 4000
    await world.start()
    partition = world.find("t0")
    assert partition.producers.check(4000, 0, 59, 59) == (59, EPOCH_MS), "a retry is recognised"
    assert partition.producers.check(4000, 0, 60, 60) is None
    with pytest.raises(KafkaError):
        partition.producers.check(4000, 0, 62, 62)


async def aborted_of(partition: Partition) -> list[Aborted]:
    """Aborted transactions of the whole partition, as a reader of committed records gets them:
    those of segments with the data, and those in the journals."""
    found = set(partition.list_aborted(0, partition.next_offset))
    offset = 0
    while offset < partition.last_stable_offset:
        plan = partition.plan(offset, 1, partition.last_stable_offset, True)
        listed: list[Aborted] = []
        if isinstance(plan, HotRead):
            listed = aborted_in(plan)
            views, release = partition.log.views(plan)
            buffers: list[Buffer] = [bytes(view) for view in views]
            release()
        else:
            buffers = await partition.log.read(plan, None, listed)
        found.update(listed)
        offset = 1 + max(head.last_offset for raw in buffers for _, head in iter_batches(raw))
    return sorted(found)


@pytest.mark.parametrize("power", [None, True])
async def test_transactions_are_restored(power: bool | None) -> None:
    world = await started(1)
    partition = world.find("t0")
    one, two, three = Producer(1), Producer(2), Producer(3)
    one.send(partition, b"aborted")
    await world.log.commit_log.wait_until_committed()
    await fill(partition, 60)
    one.send(partition, b"aborted")
    one.end(partition, commit=False)
    await world.log.commit_log.wait_until_committed()
    await fill(partition, 20)
    await cut(world)
    assert partition.cut_offset > 0
    two.send(partition, b"aborted")
    two.end(partition, commit=False, version=2)
    three.send(partition, b"open")
    await world.log.commit_log.wait_until_committed()
    await fill(partition, 30)
    before = partition.last_stable_offset, partition.producers.entries()
    aborted = await aborted_of(partition)
    assert len(aborted) == 2
    records = await committed_records(partition)
    assert len(records) == 80
    if power is None:
        await world.log.close()
    else:
        await world.abandon()
        world.fs.crash()
    await rebuilt(world)
    await clean(world)
    await world.start()
    partition = world.find("t0")
    stable, entries = before
    assert partition.last_stable_offset == stable
    fields = [(each.producer_id, each.epoch, each.open_offset) for each in entries]
    again = partition.producers.entries()
    assert [(each.producer_id, each.epoch, each.open_offset) for each in again] == fields
    assert await aborted_of(partition) == aborted
    assert await committed_records(partition) == records
    three.end(partition, commit=False)
    await world.log.commit_log.wait_until_committed()
    assert await committed_records(partition) == records + expected(86, 116)


async def test_topics_are_written_to_journals_of_restored_folder() -> None:
    world = await started(3)
    await world.log.close()
    for name in world.fs.listdir(FOLDER):
        if name.startswith("ledger"):
            world.fs.remove(f"{FOLDER}/{name}")
    for name in world.fs.listdir(f"{FOLDER}/journals"):
        world.fs.remove(f"{FOLDER}/journals/{name}")  # like in a restored folder
    await world.start()
    await settle()
    await world.log.close()
    made = await rebuilt(world)
    assert sorted(topic.name for topic in made.topics) == ["t0", "t1", "t2"]


async def test_topics_are_restored_from_segments_alone() -> None:
    world = await started(2)
    await fill(world.find("t0"), 60)
    await cut(world)
    end = world.find("t0").cut_offset
    await world.log.close()
    for name in world.fs.listdir(f"{FOLDER}/journals"):
        world.fs.remove(f"{FOLDER}/journals/{name}")
    made = await rebuilt(world)
    assert [topic.name for topic in made.topics] == ["t0"]
    assert any("t0 is known from its records only" in text for text in made.texts())
    assert any("is missing, though it was acknowledged" in text for text in made.texts())
    await world.start()
    assert await read_all(world.find("t0")) == expected(0, end)


async def test_damaged_segment_is_quarantined_and_reported() -> None:
    world = await started(1)
    await fill(world.find("t0"), 60)
    await cut(world)
    await world.log.close()
    (name,) = [n for n in world.fs.listdir(f"{FOLDER}/segments") if n.endswith(".segment")]
    path = f"{FOLDER}/segments/{name}"
    file = world.fs.open(path)
    file.truncate(file.size() - 8)
    made = await rebuilt(world)
    assert made.aside == [path]
    assert any(name in text and "set aside" in text for text in made.texts())


def seen(*shares: tuple[int, int, int], ranges: list[tuple[int, int]]) -> FolderEvidence:
    """Evidence of one partition: shares (base, end, created), and ranges in the journals."""
    partition = PartitionSeen(1, b"i" * 16, "t", 0, ranges=ranges)
    for at, (base, end, created) in enumerate(shares):
        file = SegmentSeen(bytes([at]) * 16, created, 1000, f"s{at}")
        entry = PartitionEntry(
            1, b"i" * 16, "t", 0, 64, 100, base, end, 1, end - base, 5, 200, 40, 0
        )
        partition.shares.append(SegmentShare(file, entry))
    ends = [end for _, end in ranges] + [end for _, end, _ in shares]
    partition.next_offset = max(ends)
    topic = TopicSeen(b"i" * 16, "t", count=1, numbers={0: 1})
    return FolderEvidence({1: partition}, {topic.id: topic})


def chosen(made: RestorePlan) -> list[tuple[int, int]]:
    return [(s.entry.base_offset, s.entry.end_offset) for s in made.shares.get(1, [])]


def test_files_without_gaps_are_preferred() -> None:
    inputs_and_output = seen((0, 10, 1), (10, 20, 2), (0, 20, 3), (20, 30, 4), ranges=[(30, 40)])
    made = plan_restore(inputs_and_output, 1)
    assert chosen(made) == [(0, 20), (20, 30)], "the newest: it may be cleaned"
    assert made.aside == []
    interrupted = seen((0, 10, 1), (10, 15, 2), (10, 20, 3), ranges=[(10, 40)])
    assert chosen(plan_restore(interrupted, 1)) == [(0, 10), (10, 20)]


def test_log_starts_after_gap_unless_files_are_damaged() -> None:
    made = plan_restore(seen((0, 10, 1), (20, 30, 2), ranges=[(0, 5), (30, 40)]), 1)
    assert chosen(made) == [(20, 30)]
    assert made.checkpoints[0].log_start == 20
    assert made.aside == ["s0"]
    assert "t-0 starts at offset 20" in made.texts()[0]
    behind = seen((0, 10, 1), ranges=[(20, 40)])
    assert chosen(plan_restore(behind, 1)) == []
    damaged = replace(behind, damage=[Damage(Gap(3, 64, 128), [Loss(1, 10, 20)])])
    damaged.partitions[1].log_start = 0
    made = plan_restore(damaged, 1)
    assert chosen(made) == [(0, 10)], "records before damage can still be read"
    assert made.checkpoints[0].log_start == 0
    assert any("offsets 10-19 of t-0 are lost" in text for text in made.texts())


@pytest.mark.real
def test_restore_command_on_folder_of_real_broker(tmp_path: Path) -> None:
    folder = ("--data", str(tmp_path))
    with BrokerProcess(data=tmp_path) as broker:
        produce(broker.bootstrap, "made", {0: 20})
        begun = Typed(broker.bootstrap, "consume", "made", "--group", "g", "--limit", "15")
        assert begun.code == 0
        busy = Typed("", "restore", "--from-log", *folder)
        assert (busy.code, "another kafkawire process" in busy.err) == (1, True)
        words = ("configs", "set", "log.retention.ms=123456", "--brokers-default")
        assert Typed(broker.bootstrap, *words).code == 0
        manifest = tmp_path / "brokers" / "1" / "manifest" / "current"
        wait_until(manifest.exists, "the local manifest, which is first written after 2 s")
    sound = Typed("", "restore", "--from-log", *folder)
    assert (sound.code, "nothing to restore" in sound.err) == (1, True)
    (tmp_path / "metadata.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
    done = Typed("", "restore", "--from-log", *folder, "--json")
    reported = json.loads(done.out)
    assert (done.code, reported["topics"], reported["losses"]) == (0, 2, []), (
        "the local manifest supplies the rest"
    )
    assert Path(reported["damaged"]).name == "metadata.db.damaged-1"
    assert Path(reported["damaged"]).stat().st_size == 4096
    command = [sys.executable, "-P", "-m", "kafkawire", "fsck", *folder]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    with BrokerProcess(data=tmp_path) as broker:
        every = Typed(broker.bootstrap, "consume", "made")
        assert every.out.split() == [str(at) for at in range(20)]
        rest = Typed(broker.bootstrap, "consume", "made", "--from", "resume", "--group", "g")
        assert rest.out.split() == [str(at) for at in range(15, 20)]
        words = ("configs", "describe", "--brokers-default", "--json")
        assert "123456" in Typed(broker.bootstrap, *words).out
        (tmp_path / "metadata.db").unlink()
        held = Typed("", "restore", "--from-log", *folder)
        assert (held.code, "another kafkawire process" in held.err) == (1, True)


def test_restore_command_requires_backup_or_from_log(tmp_path: Path) -> None:
    for words in ([], ["backup", "--from-log"]):
        done = Typed("", "restore", *words, "--data", str(tmp_path))
        assert (done.code, "either the folder" in done.err) == (2, True)
    empty = Typed("", "restore", "--from-log", "--data", str(tmp_path))
    assert (empty.code, "is not a data folder" in empty.err) == (1, True)
