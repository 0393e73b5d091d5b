"""Metadata of several brokers rebuilt from their folders: each leads what it led last.

Covers: kafkawire.restore.segment_files.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.log.io.ports import LogError
from kafkawire.metadata.checkpoint import ProducerEntry
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.restore.combine import Carried, combine_folders
from kafkawire.restore.evidence import FolderEvidence
from kafkawire.restore.plan import plan_restore
from kafkawire.testing.process import BrokerProcess
from tests.kit.waiting import wait_until
from tests.real import librdkafka
from tests.restore.test_lost_metadata import command, remove
from tests.restore.test_rebuild import seen

Range = tuple[int, int]


def folder(*ranges: Range, shares: tuple[Range, ...] = (), epoch: int = 0) -> FolderEvidence:
    """A folder with one partition, as the journals and segments have it."""
    made = seen(*((base, end, 1) for base, end in shares), ranges=list(ranges) or [(0, 0)])
    partition = made.partitions[1]
    partition.ranges = list(ranges)
    partition.epoch = epoch
    partition.epochs = [(epoch, min([*ranges, *shares], default=(0, 0))[0])]
    return made


def carried(first: FolderEvidence, second: FolderEvidence) -> list[tuple[int, int, int]]:
    """The leader, first and end offset of each range that is copied."""
    found = combine_folders({1: first, 2: second}).carried
    assert all({each.leader, each.source} == {1, 2} for each in found)
    return [(each.leader, each.first, each.end) for each in found]


def test_partition_belongs_to_the_folder_with_the_highest_epoch() -> None:
    old, new = folder((0, 50), epoch=3), folder((50, 70), epoch=4)
    for found in ({1: old, 2: new}, {2: new, 1: old}):
        assert combine_folders(found).leaders == {1: 2}
    assert combine_folders({1: new, 2: old}).leaders == {1: 1}
    assert combine_folders({1: folder((0, 50)), 2: folder((0, 60))}).leaders == {1: 2}
    assert combine_folders({1: folder((0, 50)), 2: folder((0, 50))}).leaders == {1: 1}


def test_only_what_the_leader_does_not_have_is_carried() -> None:
    assert carried(folder((0, 50)), folder((50, 70), epoch=1)) == [(2, 0, 50)]
    # an earlier leader wrote on, without a commit
    assert carried(folder((0, 60)), folder((50, 70), epoch=1)) == [(2, 0, 50)]
    assert carried(folder((0, 90)), folder((50, 70), epoch=1)) == [(2, 0, 50)]
    # moved and moved back
    back = folder((80, 90), shares=((0, 30),), epoch=2)
    assert carried(folder((30, 80), epoch=1), back) == [(2, 30, 80)]
    back = folder((80, 90), shares=((0, 30),), epoch=2)
    assert carried(back, folder((30, 80), epoch=1)) == [(1, 30, 80)]
    # segments and journals of one folder in one stretch
    assert carried(folder((20, 50), shares=((0, 20),)), folder((50, 70), epoch=1)) == [(2, 0, 50)]
    assert carried(folder((0, 50)), folder((0, 70), epoch=1)) == []


def test_carried_records_count_as_there_from_the_log_start_on() -> None:
    old, new = folder((0, 50)), folder((50, 70), epoch=1)
    new.partitions[1].log_start = 20
    combined = combine_folders({1: old, 2: new})
    assert combined.carried == [Carried(1, 2, 1, 20, 50)]
    made = plan_restore(combined.seen, 1, combined.leaders)
    (topic,) = made.topics
    assert [(p.leader, p.leader_epoch) for p in topic.partitions] == [(2, 2)]
    assert (made.checkpoints[0].log_start, made.checkpoints[0].next_offset) == (20, 70)
    assert made.checkpoints[0].leader_epochs[:2] == [(0, 0), (1, 50)]
    assert [len(combined.part_of(made, node).checkpoints) for node in (1, 2)] == [0, 1]


def test_producers_of_an_earlier_leader_are_known_to_the_new_one() -> None:
    old, new = folder((0, 50)), folder((50, 70), epoch=1)
    old.partitions[1].producers.load([ProducerEntry(7, 0, [(0, 4, 40, 0)]), ProducerEntry(8, 1)])
    new.partitions[1].producers.load([ProducerEntry(8, 2)])
    combined = combine_folders({1: old, 2: new})
    entries = combined.seen.partitions[1].producers.entries()
    assert {entry.producer_id: entry.epoch for entry in entries} == {7: 0, 8: 2}


def test_folders_that_contradict_each_other_are_refused() -> None:
    other = folder((0, 10))
    other.partitions[1].topic_id = b"o" * 16
    with pytest.raises(LogError, match=r"brokers \[1, 2\] have partition number 1 for different"):
        combine_folders({1: folder((0, 10)), 2: other})


SMALL = {"journal.bytes": str(1 << 20), "hot.bytes": "1048576", "offset.storage": "sql"}
COUNT = 6_900


def broker(data: Path, node: int) -> BrokerProcess:
    return BrokerProcess(data, settings={**SMALL, "node.id": node})


def create(server: BrokerProcess, name: str, leader: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[leader]])])[name].result(60)


def produce(server: BrokerProcess, topic: str, count: int) -> None:
    rows = [{"value": b"%d:" % at + bytes(300), "partition": 0} for at in range(count)]
    librdkafka.produce(server.bootstrap, topic, rows, acks="all")


def consume(server: BrokerProcess, topic: str, count: int) -> list[int]:
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "unused",
        "log_level": 2,
    }
    settings["enable.auto.commit"] = False  # else the end waits for a coordinator
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = librdkafka.read(consumer, count)
    consumer.close()
    return [int((message.value() or b"").partition(b":")[0]) for message in found]


async def move(data: Path, topic: str, leader: int) -> None:
    """Make another broker the leader of a topic's partition, while none runs."""
    metadata = SqlMetadata(f"sqlite:///{data}/metadata.db")
    catalog = await metadata.open()
    await metadata.register_broker(leader, {}, None)
    numbers = [p.number for p in catalog.by_name[topic].partitions]
    await metadata.move_partitions(numbers, leader, catalog.stored_version)
    await metadata.close()


async def epoch_of(data: Path, topic: str) -> int:
    metadata = SqlMetadata(f"sqlite:///{data}/metadata.db")
    catalog = await metadata.open()
    await metadata.close()
    return catalog.by_name[topic].partitions[0].leader_epoch


@pytest.mark.real
def test_records_of_a_moved_partition_are_restored_at_its_new_leader(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data, 1) as first:
        create(first, "moved", 1)
        create(first, "stayed", 1)
        produce(first, "moved", COUNT)
        wait_until(lambda: any((data / "brokers/1/segments").glob("*.segment")), "a cut")
        produce(first, "stayed", 20)
    asyncio.run(move(data, "moved", 2))
    with broker(data, 2) as second:
        create(second, "theirs", 2)
        produce(second, "theirs", 30)
        produce(second, "moved", 40)
        epoch = asyncio.run(epoch_of(data, "moved"))
    remove(data)
    done = command("restore", "--from-log", "--data", str(data), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["topics"], report["partitions"]) == (3, 3)
    assert not [loss for loss in report["losses"] if "offsets" in loss], report["losses"]
    assert command("fsck", "--data", str(data)).returncode == 0
    assert asyncio.run(epoch_of(data, "moved")) > epoch
    with broker(data, 2) as second:
        assert consume(second, "moved", COUNT + 40) == [*range(COUNT), *range(40)]
        assert consume(second, "theirs", 30) == list(range(30))
        produce(second, "moved", 5)
        assert consume(second, "moved", COUNT + 45)[COUNT + 40 :] == list(range(5))
    with broker(data, 1) as first:
        assert consume(first, "stayed", 20) == list(range(20))
        produce(first, "stayed", 5)
    with broker(data, 2) as second:
        assert len(consume(second, "moved", COUNT + 45)) == COUNT + 45
    done = command("restore", "--from-log", "--data", str(data))
    assert done.returncode == 1
    assert "nothing to restore" in done.stderr


@pytest.mark.real
def test_folders_of_different_clusters_are_refused(tmp_path: Path) -> None:
    for node in (1, 2):
        with broker(tmp_path / str(node), node):
            pass
    (tmp_path / "2/brokers/2").rename(tmp_path / "1/brokers/2")
    remove(tmp_path / "1")
    done = command("restore", "--from-log", "--data", str(tmp_path / "1"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has the logs of brokers 1, 2, which belong to different clusters" in done.stderr
