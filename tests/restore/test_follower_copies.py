"""A broker is restored from a follower's copy of its log, when its machine and the metadata
database are lost.

Covers: kafkawire.restore.follower_copies, kafkawire.cli.restore.from_follower.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner, Result

from kafkawire.cli.app import app
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.ports import LogError
from kafkawire.replication.journal_copy import journal_name
from kafkawire.replication.machine import Files
from kafkawire.replication.messages import POSITION_BITS
from kafkawire.replication.node_copies import NodeCopies
from kafkawire.restore.follower_copies import (
    EPOCH_MARGIN,
    FollowerCopy,
    list_copy_folders,
    open_copies,
)
from kafkawire.restore.plan import RestorePlan
from kafkawire.testing.process import BrokerProcess
from tests.kit.machines import Machine
from tests.kit.ports import free_port
from tests.kit.waiting import wait_until
from tests.real.librdkafka import produce, read

FS = DiskFileSystem()
FIRST = 3
"""The first journal of copies."""
BEGIN = FIRST << POSITION_BITS


def write(folder: Path, node: int, epoch: int, data: bytes) -> NodeCopies:
    """Write the copy of a log that does not continue another one."""
    folder.mkdir(exist_ok=True)
    copies = NodeCopies(Files(), str(folder / str(node)), node)
    copies.start_epoch(epoch, epoch + 50, BEGIN, FIRST)
    copies.write(epoch, BEGIN, data)
    copies.close()
    return copies


def found(source: Path) -> list[FollowerCopy]:
    with open_copies(FS, str(source)) as copies:
        return copies


def test_longest_copy_is_used_and_the_others_are_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 4, b"longer")
    write(tmp_path, 1, 7, b"newer")
    longer, newer = found(tmp_path)
    assert (longer.folder, longer.epoch) == (f"{tmp_path}/1/4", 4)
    assert longer.journals == ((journal_name(FIRST), 6),)
    assert (longer.end, newer.end) == (BEGIN + 6, BEGIN + 5)
    plan = RestorePlan(1)
    longer.amend(plan, [newer])
    (text,) = plan.texts()
    assert f"{tmp_path}/1/7 has another copy" in text
    # Each folder of it may be the source.
    assert found(tmp_path / "1") == [longer, newer]
    assert found(tmp_path / "1" / "7") == [newer]


def test_fence_and_lost_files_count(tmp_path: Path) -> None:
    copies = write(tmp_path, 1, 4, b"0123456789")
    copies.mark(4, BEGIN + 8, FIRST)
    copies.write(4, (FIRST + 1) << POSITION_BITS, b"rolled, which stores the mark")
    copies.sync(4)
    copies.fence(12)
    copies.close()
    (tmp_path / "1" / "4" / journal_name(FIRST + 1)).unlink()
    (copy,) = found(tmp_path)
    assert (copy.epoch, copy.end, copy.committed) == (12, BEGIN + 10, BEGIN + 8)
    os.truncate(tmp_path / "1" / "4" / journal_name(FIRST), 5)
    (copy,) = found(tmp_path)
    plan = RestorePlan(1)
    copy.amend(plan, [])
    assert "records up to byte 8 of journal 3 were acknowledged" in plan.texts()[0]
    assert plan.broker_epoch > 12


def test_bytes_after_the_cut_of_an_interrupted_change_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = write(tmp_path, 1, 4, b"0123456789")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kafkawire.replication.journal_copy.JournalCopy._complete_change", fail)
        with pytest.raises(KeyboardInterrupt):
            copies.start_epoch(5, 4, BEGIN + 6, FIRST)
    (copy,) = found(tmp_path)
    assert (copy.epoch, copy.end) == (5, BEGIN + 6)
    assert copy.journals == ((journal_name(FIRST), 6),)


def test_sources_that_are_refused(tmp_path: Path) -> None:
    for name in ("data", "data/1", "data/1/x"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "1" / "x" / "copy").write_bytes(b"")
    assert not list_copy_folders(FS, str(tmp_path / "data"))
    with pytest.raises(LogError, match="no copies"):
        found(tmp_path / "data")
    replicas = tmp_path / "replicas"
    write(replicas, 1, 4, b"x")
    write(replicas, 3, 4, b"x")
    with pytest.raises(LogError, match=f"brokers 1, 3: restore each.*{replicas}/1"):
        found(replicas)
    lock = Files().lock(f"{replicas}/lock")
    try:
        with pytest.raises(LogError, match="is used by a follower: stop kafkawire"):
            found(replicas / "1")
    finally:
        os.close(lock)
    state = replicas / "1" / "4" / "copy"
    state.write_bytes(state.read_bytes()[:-4])
    with pytest.raises(LogError, match=r"copy is damaged.*another follower"):
        found(replicas / "1")
    before = state.read_bytes()
    result = restore(replicas / "1", tmp_path / "new", tmp_path / "tier", 1)
    assert "is damaged" in result.stderr
    assert state.read_bytes() == before
    assert not (tmp_path / "new").exists()
    words = ["restore", str(replicas), "--data", str(tmp_path / "new")]
    refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, "--tier is missing" in refused.stderr) == (2, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in restore(replicas / "3", tmp_path / "full", tmp_path / "tier", 2).stderr


def restore(source: Path, data: Path, tier: Path, code: int = 0) -> Result:
    words = ["restore", str(source), "--data", str(data), "--tier", str(tier)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


# A broker on one machine, and the follower of another one.

RECORDS = 200
SETTINGS = {
    "cluster.takeover.enable": True,
    "controlled.shutdown.enable": False,
    "durability": "replicated",
    "min.insync.replicas": 2,
    "journal.roll.ms": 500,
    "cut.interval.ms": 100,
    "tiering.max.lag.ms": 5000,
}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[int, Machine]]:
    made: dict[int, Machine] = {}
    for node in (1, 2):
        settings = {
            **SETTINGS,
            "node.id": node,
            "replication.listener": f"127.0.0.1:{free_port()}",
        }
        words = ["--metadata", f"sqlite:///{tmp_path}/shared.db", "--tier", str(tmp_path / "tier")]
        made[node] = Machine(tmp_path / f"data-{node}", "", settings, words)
    try:
        for machine in made.values():
            machine.start()
        yield made
    finally:
        for machine in made.values():
            machine.kill()


@pytest.mark.real
@pytest.mark.slow
def test_every_acknowledged_record_is_restored(
    machines: dict[int, Machine], tmp_path: Path
) -> None:
    """Some of them are in the tier, the newest only in the journals. The machine of broker 1 and
    the database are lost, and the other machine is killed, too. Its broker uses the same tier."""
    first = machines[1]
    topic = NewTopic("t", 2, replica_assignment=[[1], [1]], config={"segment.ms": "500"})
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    other = NewTopic("other", 1, replica_assignment=[[2]], config={"segment.ms": "500"})
    for made in admin.create_topics([topic, other]).values():
        made.result(60)
    send(first.bootstrap, 0)
    produce(first.bootstrap, "other", [{"value": b"x"}], acks="all")
    tier = tmp_path / "tier"
    wait_until(lambda: records_in(tier, tmp_path) == {"t": 2 * RECORDS, "other": 1}, "the uploads")
    send(first.bootstrap, 1)
    for machine in machines.values():
        machine.kill()
    for path in [*tmp_path.glob("shared.db*")]:
        path.unlink()
    shutil.rmtree(tmp_path / "data-1")
    assert records_in(tier, tmp_path)["t"] < 4 * RECORDS, "the tier alone does not have them"
    replicas, new = tmp_path / "data-2" / "replicas", tmp_path / "new"
    before = files(replicas)
    result = restore(replicas, new, tier)
    assert "2 topics, 3 partitions restored from the log" in result.output
    assert "of which broker 1 takes everything" in result.output
    assert "offset" not in result.output, "nothing of it is lost"
    assert f"Start the broker: kafkawire serve --data {new} --tier {tier}\n" in result.output
    assert files(replicas) == before
    with BrokerProcess(new, arguments=["--tier", str(tier)]) as broker:
        assert values(broker.bootstrap) == sorted(
            b"%d-%d-%d" % (at, partition, n)
            for at in range(2)
            for partition in range(2)
            for n in range(RECORDS)
        )
        later = [{"value": b"later", "partition": 0}]
        assert produce(broker.bootstrap, "t", later, acks="all") == [2 * RECORDS]
    with closing(sqlite3.connect(new / "metadata.db")) as connection:
        ((epoch,),) = connection.execute("SELECT epoch FROM brokers WHERE node_id = 1")
    assert epoch > EPOCH_MARGIN, "followers of the lost broker take its log"


def records_in(tier: Path, folder: Path) -> dict[str, int]:
    """Return how many records of the topics are in the tier."""
    words = ["restore", str(tier), "--data", str(folder / "unused"), "--dry-run", "--json"]
    result = CliRunner().invoke(app, words)
    if result.exit_code:
        return {}
    rows = json.loads(result.stdout)["topics"]
    return {row["topic"]: row["records"] for row in rows if row["topic"] in ("t", "other")}


def send(bootstrap: str, at: int) -> None:
    for partition in range(2):
        rows = [{"value": b"%d-%d-%d" % (at, partition, n)} for n in range(RECORDS)]
        produce(bootstrap, "t", [{**row, "partition": partition} for row in rows], acks="all")


def values(bootstrap: str) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g"}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition("t", at, OFFSET_BEGINNING) for at in range(2)])
        return sorted(message.value() or b"" for message in read(consumer, 4 * RECORDS))


def files(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
