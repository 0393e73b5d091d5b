"""Metadata lost under a real broker: the start is refused, a rebuild restores every record."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkawire.metadata.schema import REVISION, VERSION_TABLE
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.damaged_rows import damage_sqlite
from tests.kit.waiting import wait_until

COUNT = 6_900
SMALL = {"journal.bytes": str(1 << 20), "hot.bytes": "1048576"}
WITH = ("", "-wal", "-shm")


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", linger_ms=5)
    sent = [producer.send(topic, b"%d:" % at + bytes(300), partition=0) for at in range(count)]
    for each in sent:
        each.get(90)
    producer.close()


def consume(broker: BrokerProcess, topic: str, count: int) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=90_000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[int] = []
    for record in consumer:
        found.append(int(record.value.partition(b":")[0]))
        if len(found) == count:
            break
    consumer.close()
    return found


def command(*words: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-P", "-m", "kafkawire", *words]
    return subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)


def refused(data: Path) -> str:
    """The reason why `serve` refuses; one line."""
    done = command("serve", "--data", str(data), "--listen", "127.0.0.1:0")
    assert done.returncode == 2, (done.stdout, done.stderr)
    # A busy machine may add log lines, which begin with the time.
    (sentence,) = [line for line in done.stderr.splitlines() if not line[:4].isdigit()]
    return sentence


def remove(data: Path, ends: tuple[str, ...] = WITH) -> None:
    for end in ends:
        (data / f"metadata.db{end}").unlink(missing_ok=True)


def emptied(data: Path, _copy: Path) -> None:
    remove(data)
    (data / "metadata.db").touch()


def removed(data: Path, _copy: Path) -> None:
    remove(data)


def without_wal(data: Path, _copy: Path) -> None:
    remove(data, ("-wal",))


def flipped_wal(data: Path, _copy: Path) -> None:
    wal = data / "metadata.db-wal"
    raw = bytearray(wal.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    wal.write_bytes(raw)


def cut_short(data: Path, _copy: Path) -> None:
    remove(data, ("-wal", "-shm"))
    path = data / "metadata.db"
    path.write_bytes(path.read_bytes()[: 10 * 4096 + 100])


def older(data: Path, copy: Path) -> None:
    remove(data)
    for end in WITH[:2]:
        shutil.copy(copy / f"metadata.db{end}", data / f"metadata.db{end}")


def topic_deleted(data: Path, _copy: Path) -> None:
    change = "UPDATE topics SET deleted_ms = 1 WHERE name = 'orders'"
    damage_sqlite(data / "metadata.db", change, "topics")


def records_hidden(data: Path, _copy: Path) -> None:
    change = "UPDATE partition_offset_checkpoints SET log_start = log_start + 512"
    largest = "SELECT max(checkpoint_offset) FROM partition_offset_checkpoints"
    change = f"{change} WHERE checkpoint_offset = ({largest})"
    damage_sqlite(data / "metadata.db", change, "partition_offset_checkpoints")


def execute(data: Path, statement: str) -> None:
    """Change a row as an older page of the database has it: its checksum is right."""
    with closing(sqlite3.connect(data / "metadata.db")) as connection:
        assert connection.execute(statement).rowcount == 1
        connection.commit()


def without_topic(data: Path, _copy: Path) -> None:
    execute(data, "DELETE FROM topics WHERE name = 'orders'")


def without_mapping(data: Path, _copy: Path) -> None:
    largest = "SELECT partition_number, max(end_offset) FROM offset_mappings"
    where = f"(partition_number, end_offset) = ({largest})"
    execute(data, f"DELETE FROM offset_mappings WHERE {where}")


def without_segment(data: Path, _copy: Path) -> None:
    execute(data, "DELETE FROM segments WHERE id = (SELECT max(segment_id) FROM offset_mappings)")


def set_revision(data: Path, revision: str) -> None:
    with closing(sqlite3.connect(data / "metadata.db")) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (revision,))
        connection.commit()


def newer_revision(data: Path, _copy: Path) -> None:
    set_revision(data, "1" + REVISION[1:])


def older_revision(data: Path, _copy: Path) -> None:
    # Before one with columns that cannot be added twice: a start migrates from later ones.
    set_revision(data, "0012")


def unknown_revision(data: Path, _copy: Path) -> None:
    set_revision(data, "0\x10" + REVISION[2:])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a killed broker with records in segments and journals, and an older copy of
    its metadata."""
    folder = tmp_path_factory.mktemp("killed")
    data, copy = folder / "data", folder / "copy"
    broker = BrokerProcess(data, settings=SMALL)
    broker.start()
    try:
        produce(broker, "early", 10)
        copy.mkdir()
        for end in WITH[:2]:
            shutil.copy(data / f"metadata.db{end}", copy / f"metadata.db{end}")
        produce(broker, "orders", COUNT)
        wait_until(lambda: any((data / "brokers/1/segments").glob("*.segment")), "a cut")
        before = identity(data)
        produce(broker, "late", 100)
        wait_until(lambda: identity(data) > before, "the topic is recorded")
    finally:
        broker.kill()
    return data, copy


def identity(data: Path) -> int:
    line = (data / "brokers/1/identity").read_text().splitlines()[0]
    return int(json.loads(line)["generation"])


@pytest.mark.real
@pytest.mark.parametrize(
    "harm",
    [
        removed, emptied, without_wal, flipped_wal, cut_short, older, topic_deleted,
        records_hidden, newer_revision, older_revision, unknown_revision, without_topic,
        without_mapping, without_segment,
    ],
)  # fmt: skip
def test_start_is_refused_and_rebuild_restores_everything(
    killed: tuple[Path, Path], tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed[0], data)
    harm(data, killed[1])
    why = refused(data)
    assert f"`kafkawire restore --from-log --data {data}`" in why
    files = sorted(path.name for path in (data / "brokers/1/segments").iterdir())
    assert command("fsck", "--data", str(data), "--repair").returncode in (1, 2)
    assert sorted(path.name for path in (data / "brokers/1/segments").iterdir()) == files
    if harm in (topic_deleted, records_hidden):
        assert "1 row does not match its checksum: " in why
        assert "orders" in why
    assert refused(data) == why, "nothing was changed"
    done = command("restore", "--from-log", "--data", str(data), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["topics"] == 3
    assert command("fsck", "--data", str(data)).returncode == 0
    with BrokerProcess(data, settings=SMALL) as broker:
        assert consume(broker, "orders", COUNT) == list(range(COUNT))
        assert consume(broker, "early", 10) == list(range(10))
        assert consume(broker, "late", 100) == list(range(100))
    with closing(sqlite3.connect(data / "metadata.db")) as connection:
        ((cluster_id,),) = connection.execute("SELECT cluster_id FROM cluster")
    line = (killed[0] / "brokers/1/identity").read_text().splitlines()[0]
    assert json.loads(line)["cluster_id"] == cluster_id


@pytest.mark.real
def test_data_and_metadata_of_two_brokers_are_refused(
    killed: tuple[Path, Path], tmp_path: Path
) -> None:
    data, empty = tmp_path / "data", tmp_path / "empty"
    shutil.copytree(killed[0], data)
    remove(data)
    with BrokerProcess(tmp_path / "other") as other:
        produce(other, "theirs", 5)
    url = f"sqlite:///{tmp_path}/other/metadata.db"
    for folder, why in [(data, "belongs to cluster"), (empty, "holds nothing of broker 1")]:
        words = ("--data", str(folder), "--metadata", url, "--listen", "127.0.0.1:0")
        done = command("serve", *words)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
        # A busy machine may add log lines, which begin with the time.
        sentences = [line for line in done.stderr.splitlines() if not line[:4].isdigit()]
        assert len(sentences) == 1, done.stderr
    with BrokerProcess(tmp_path / "other") as other:
        assert consume(other, "theirs", 5) == list(range(5))


@pytest.mark.real
@pytest.mark.parametrize("kills", [3])
def test_broker_killed_repeatedly_starts_each_time(tmp_path: Path, kills: int) -> None:
    broker = BrokerProcess(tmp_path)
    for at in range(kills):
        try:
            broker.start()
            produce(broker, f"topic-{at}", 5)
        except BrokerFailed as failure:
            pytest.fail(str(failure))
        finally:
            broker.kill()
    with broker:
        for at in range(kills):
            assert consume(broker, f"topic-{at}", 5) == list(range(5))


TIERED = {
    **SMALL,
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "cut.interval.ms": "100",
    "log.local.retention.ms": "1",
    "log.segment.delete.delay.ms": "1",
}


def rows(data: Path, query: str) -> int:
    with closing(sqlite3.connect(data / "metadata.db")) as connection:
        return int(connection.execute(query).fetchone()[0])


@pytest.mark.real
def test_rebuild_restores_records_only_in_remote_tier(tmp_path: Path) -> None:
    data, tier = tmp_path / "data", tmp_path / "tier"
    broker = BrokerProcess(data, settings=TIERED, arguments=["--tier", str(tier)])
    broker.start()
    try:
        produce(broker, "orders", 3_000)
        away = "SELECT count(*) FROM segments WHERE local = 0 AND object IS NOT NULL"
        wait_until(lambda: rows(data, away) > 0, "a segment that is in the tier only")
        files = data / "brokers/1/segments"
        wait_until(lambda: not list(files.glob("*.segment")), "its file is removed")
        produce(broker, "late", 100)
    finally:
        broker.kill()
    remove(data)
    assert "is missing or empty" in refused(data)
    done = command("restore", "--from-log", "--data", str(data), "--json")
    assert done.returncode == 0, done.stderr
    assert command("fsck", "--data", str(data)).returncode == 0
    assert rows(data, away) > 0
    with BrokerProcess(data, settings=TIERED, arguments=["--tier", str(tier)]) as again:
        assert consume(again, "orders", 3_000) == list(range(3_000))
        assert consume(again, "late", 100) == list(range(100))
        produce(again, "orders", 10)
