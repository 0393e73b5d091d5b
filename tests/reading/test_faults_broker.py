"""Spark and its tasks on the folder of a real broker, and changes of it meanwhile.

Compacted topics, nulls and large values, retention and deletion after planning, segments that are
merged and removed while a task reads, damage on the disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import (
    COMPACTED,
    LOST,
    Account,
    DamagedData,
    DataLoss,
    PartitionRange,
    Source,
    SourceError,
    Task,
    TaskPart,
)
from kafkawire.reading.read_task import read_task
from kafkawire.testing.plugin import Factory
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.session import sentence
from tests.kit.minio import Minio
from tests.kit.spark import files as sparkfiles
from tests.kit.spark.files import Files, Share, batch, batches, marker
from tests.kit.spark.session import environment
from tests.kit.spark.topics import HASTY, Row, Topics
from tests.kit.waiting import WITHIN_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

SELECTION = Selection(("offset", "key", "value"))
LARGE = 10_000_000
Record = tuple[int, bytes | None, bytes | None]
SETTINGS = HASTY | {"message.max.bytes": str(2 * LARGE)}


@pytest.fixture(scope="module")
def broker(kafkawire_broker_factory: Factory) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory(settings=SETTINGS)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def topics(broker: BrokerProcess) -> Topics:
    return Topics(broker)


@pytest.fixture(scope="module")
def folder(broker: BrokerProcess) -> Path:
    return Path(broker.data)


def now_ms() -> int:
    return int(time.time() * 1000)


def rows(*values: bytes | None, key: bytes | None = b"k") -> list[Row]:
    return [Row("", 0, -1, now_ms(), key, value, None) for value in values]


def plan(folder: Path, topic: str, **more: Any) -> tuple[Source, TaskPart]:
    """All of partition 0 that is in segments, without the broker."""
    source = Source(str(folder), **more)
    catalog = open_catalog(source)
    start, end, _ = catalog.bounds(topic, 0)
    return source, catalog.part(PartitionRange(topic, 0, start, end))


def read(source: Source, part: TaskPart) -> tuple[list[Record], Account]:
    accounts: list[Account] = []
    found: list[Record] = []
    catalog = open_catalog(source)
    task = Task((part,))
    for made in read_task(source, catalog.places, task, SELECTION, accounts=accounts):
        found += zip(*[column.to_pylist() for column in made.columns], strict=True)
    assert [account.missing for account in accounts] == [0]
    return found, accounts[0]


def consumed(bootstrap: str, topic: str, end: int) -> list[Record]:
    """The records that a Kafka consumer reads from partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    while not found or found[-1][0] < end - 1:
        message = consumer.poll(WITHIN_S)
        assert message is not None
        assert not message.error()
        offset = message.offset()
        assert offset is not None
        key, value = message.key(), message.value()
        assert not isinstance(key, str)
        assert not isinstance(value, str)
        found.append((offset, key, value))
    consumer.close()
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("brokers/*/segments/*.segment"))


ODD: list[tuple[bytes | None, bytes | None]] = [
    (None, None),
    (None, b""),
    (b"", None),
    (b"large", b"x" * LARGE),
    (b"k" * 70_000, b"v"),
]


@pytest.fixture(scope="module")
def odd(topics: Topics, folder: Path) -> None:
    """A topic of odd records, in segments."""
    topics.make("odd", 1, max_message_bytes=str(2 * LARGE))
    producer = Producer({"bootstrap.servers": topics.bootstrap, "message.max.bytes": 2 * LARGE})
    for key, value in ODD:
        producer.produce("odd", value, key, 0)
        producer.flush()
    wait_until(lambda: _end(folder, "odd") == len(ODD), "in segments")


@pytest.mark.usefixtures("odd")
def test_nulls_and_large_values_are_read_unchanged(folder: Path) -> None:
    found, account = read(*plan(folder, "odd"))
    assert found == [(at, key, value) for at, (key, value) in enumerate(ODD)]
    assert not account.counts


def _end(folder: Path, topic: str, partition: int = 0) -> int:
    try:
        catalog = open_catalog(Source(str(folder)))
        return catalog.bounds(topic, partition).segments_end if topic in catalog.topics else 0
    except SourceError:
        return 0


def _wait_for_catalog(source: Source, true: Callable[[SourceCatalog], bool]) -> None:
    """Wait until the catalog of a folder satisfies a condition. It cannot be read while a file that
    it names is deleted, which the manifest shows a little later."""

    def satisfied() -> bool:
        try:
            return true(open_catalog(source))
        except SourceError:
            return False

    wait_until(satisfied, "in the manifest")


@pytest.fixture(scope="module")
def compacted(topics: Topics, folder: Path) -> None:
    """A topic of few keys, in segments, cleaned."""
    topics.make("compacted", 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    for turn in range(4):
        keys = [b"%d" % (n % 10) for n in range(100)]
        values = [b"%d:%d" % (turn, n) for n in range(100)]
        made = [rows(value, key=key)[0] for key, value in zip(keys, values, strict=True)]
        topics.produce("compacted", made, ("none", "zstd", "lz4", "gzip")[turn])
        wait_until(lambda: _end(folder, "compacted") >= 100 * (turn + 1), "in segments")  # noqa: B023
    topics.produce("compacted", rows(None, key=b"3"))
    wait_until(lambda: _end(folder, "compacted") == 401, "in segments")

    def cleaned() -> list[Record]:
        try:
            found, account = read(*plan(folder, "compacted"))
        except SourceError:  # a file was deleted between the manifest and its replacement
            return []
        assert account.counts.get(COMPACTED, 0) == 401 - len(found)
        return found if len(found) < 50 else []

    wait_until(cleaned, "cleaned")


@pytest.mark.usefixtures("compacted")
def test_compacted_topic_matches_consumer(topics: Topics, folder: Path) -> None:
    """Records that were superseded are gaps, each explained."""
    found, account = read(*plan(folder, "compacted"))
    assert account.counts == {COMPACTED: 401 - len(found)}
    assert found == consumed(topics.bootstrap, "compacted", 401)


def test_log_start_moved_beyond_plan(topics: Topics, folder: Path) -> None:
    """DeleteRecords, like retention, after planning: the segment is deleted, which is not an error
    unless failOnDataLoss is set."""
    topics.make("short", 1)
    for turn in range(3):
        topics.produce("short", rows(*[b"%d" % n for n in range(turn * 100, turn * 100 + 100)]))
        wait_until(lambda: _end(folder, "short") == 100 * (turn + 1), "in segments")  # noqa: B023
    source, part = plan(folder, "short")
    before = set(segments(folder))
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    gone = TopicPartition("short", 0, 150)
    for future in admin.delete_records([gone]).values():
        future.result(60)
    wait_until(lambda: before - set(segments(folder)), "a segment is gone")
    _wait_for_catalog(source, lambda catalog: catalog.bounds("short", 0).start == 150)
    with pytest.raises(DataLoss, match=r"partition 0 of topic 'short'"):
        read(source, part)
    found, account = read(Source(str(folder), fail_on_data_loss=False), part)
    assert [offset for offset, _, _ in found][-150:] == [*range(150, 300)]
    assert account.counts[LOST] == 300 - len(found) >= 100


def test_segments_merged_while_task_reads(topics: Topics, folder: Path) -> None:
    """The planned files are deleted: the manifest has the new location of their records."""
    topics.make("merged", 1)
    topics.make("other", 1)
    wanted = []
    for turn in range(6):
        values = [b"%d:%d" % (turn, n) for n in range(50)]
        wanted += values
        topics.produce("other", rows(b"beside" * 200))
        topics.produce("merged", rows(*values))
        wait_until(lambda: _end(folder, "merged") == len(wanted), "in segments")  # noqa: B023
    source, part = plan(folder, "merged")
    files = {Path(folder, "brokers", "1", piece.key) for piece in part.pieces}
    files = {path for path in segments(folder) if path.name in {each.name for each in files}}
    assert files
    topics.delete("other")  # half of those that it shares is dead
    wait_until(lambda: files - set(segments(folder)), "a segment of the plan is gone")
    found, account = read(source, part)
    assert [value for _, _, value in found] == wanted
    assert not account.counts
    assert [offset for offset, _, _ in found] == [*range(len(wanted))]


def test_topic_deleted_after_planning(topics: Topics, folder: Path) -> None:
    topics.make("gone", 1)
    topics.produce("gone", rows(*[b"x"] * 50))
    wait_until(lambda: _end(folder, "gone") == 50, "in segments")
    source, part = plan(folder, "gone")
    files = {piece.key.rpartition("/")[2] for piece in part.pieces}
    topics.delete("gone")
    wait_until(lambda: not files & {path.name for path in segments(folder)}, "its segment is gone")
    _wait_for_catalog(source, lambda catalog: "gone" not in catalog.topics)
    with pytest.raises(DataLoss, match="gone"):
        read(source, part)
    found, account = read(Source(str(folder), fail_on_data_loss=False), part)
    assert not found
    assert account.counts == {LOST: 50}


def test_spark_reports_damage_on_disk(
    spark: SparkSession, topics: Topics, folder: Path, tmp_path: Path
) -> None:
    """A job fails with file, partition and offsets; it never returns fewer rows."""
    topics.make("harmed", 2)
    topics.make("sound", 1)
    made = [Row("", n % 2, -1, now_ms(), None, b"%d" % n * 50, None) for n in range(400)]
    topics.produce("harmed", made)
    for partition in (0, 1):  # each may be in a batch of its own, and cut by a job of its own
        wait_until(lambda: _end(folder, "harmed", partition) == 200, "in segments")  # noqa: B023
    topics.produce("sound", rows(*[b"x"] * 70))
    wait_until(lambda: _end(folder, "sound") == 70, "in segments")
    copied = _copied(folder, tmp_path)
    source = Source(str(copied))
    part = open_catalog(source).part(PartitionRange("harmed", 1, 0, 200))
    [piece] = part.pieces[:1]
    (path,) = copied.glob(f"brokers/*/{piece.key}")
    data = bytearray(path.read_bytes())
    data[piece.start + 200] ^= 1
    path.write_bytes(data)

    def load(topic: str, **options: str) -> int:
        reader = spark.read.format("kafkawire").option("source", str(copied))
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.option("subscribe", topic).load().count()

    assert load("sound") == 70
    with pytest.raises(DamagedData) as caught:
        read(source, part)
    with pytest.raises(Exception, match="are damaged") as refused:
        load("harmed")
    text = sentence(refused.value)
    assert path.name in text
    assert f"offsets [{caught.value.base}, {caught.value.end})" in text
    assert "partition 1 of topic 'harmed'" in text
    # Damage in unselected columns or partitions is ignored.
    ends = {"harmed": {"0": -1, "1": -1}}
    starts = {"harmed": {"0": 0, "1": caught.value.end}}
    left = load("harmed", startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends))
    assert left == 400 - caught.value.end
    path.unlink()
    with pytest.raises(Exception, match="are lost") as refused:
        load("harmed")
    assert "failOnDataLoss" in sentence(refused.value)


def _copied(folder: Path, to: Path) -> Path:
    """A copy of the files that a reader needs, so that damage to it does not affect the broker."""
    for path in [*segments(folder), *folder.glob("brokers/*/manifest/*")]:
        target = to / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.write_bytes(path.read_bytes())
        except FileNotFoundError:
            continue  # it was deleted meanwhile
    return to


@pytest.mark.usefixtures("odd", "compacted")
def test_spark_reads_nulls_large_values_and_compacted_topics(
    spark: SparkSession, topics: Topics, folder: Path
) -> None:
    topics.make("empty", 3)
    _wait_for_catalog(Source(str(folder)), lambda catalog: "empty" in catalog.topics)
    reader = spark.read.format("kafkawire").option("source", str(folder))
    frame = reader.option("subscribe", "odd,compacted,empty").load()
    found = frame.selectExpr("topic", "offset", "key IS NULL", "length(value)").collect()
    odd = sorted(row[1:] for row in found if row[0] == "odd")
    assert odd == [
        (0, True, None), (1, True, 0), (2, False, None), (3, False, LARGE), (4, False, 1)
    ]  # fmt: skip
    compacted = sorted(row[1] for row in found if row[0] == "compacted")
    assert compacted == [at for at, _, _ in consumed(topics.bootstrap, "compacted", 401)]
    assert {row[0] for row in found} == {"odd", "compacted"}


def test_spark_reads_transactions_and_reports_damage_in_bucket(
    spark: SparkSession, minio: Minio, tier_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in minio.environ.items():
        monkeypatch.setenv(name, text)
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    files = Files(open_place(tier_url))
    [number] = files.topic("t")
    of = {"producer_epoch": 0, "attributes": 0x10}
    aborted = [batch(0, 10, producer_id=7, base_sequence=0, **of), marker(10, 7, commits=False)]
    committed = [batch(11, 9, producer_id=8, base_sequence=0, **of), marker(20, 8, commits=True)]
    key = files.put(1, Share(number, [*aborted, *committed], aborted=[(7, 0, 10)]))
    files.put(2, Share(number, batches(21, [10] * 10)))
    files.publish()

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("kafkawire").option("source", tier_url)
        for name, text in options.items():
            reader = reader.option(name, text)
        return reader.option("subscribe", "t").load()

    with environment(spark, minio.environ):
        rows = load().select("offset", "value").collect()
        assert sorted((row[0], bytes(row[1])) for row in rows) == [
            (at, sparkfiles.value(at)) for at in (*range(11, 20), *range(21, 121))
        ]
        assert load(isolation="read_uncommitted").count() == 119
        data = bytearray(files.place.get(key))
        data[300] ^= 1
        files.place.put(key, bytes(data))
        with pytest.raises(Exception, match=key) as refused:
            load().count()
        assert key in sentence(refused.value)


def test_folder_of_killed_broker_can_be_read(
    kafkawire_broker_factory: Factory,
) -> None:
    """Without a process: the folder has a prefix of what was produced, never anything else; the
    next process updates the manifest."""
    # Replaced files stay for a minute, as they do by default: the manifest may be a second behind.
    broker = kafkawire_broker_factory(settings={**SETTINGS, "log.segment.delete.delay.ms": "60000"})
    topics, folder = Topics(broker), Path(broker.data)
    topics.make("t", 1)
    for turn in range(3):
        topics.produce("t", rows(*[b"%d:%d" % (turn, n) for n in range(100)]))
        if turn:
            wait_until(lambda: _end(folder, "t") >= 100 * turn, "in segments")  # noqa: B023
        broker.kill()
        wanted = [(row.offset, row.key, row.value) for row in topics.of("t")]
        if turn:
            found, account = read(*plan(folder, "t"))
            assert found == wanted[: len(found)]
            assert not account.counts
            assert len(found) >= 100 * turn
        broker.start()
    wait_until(lambda: _end(folder, "t") == 300, "in segments")
    found, account = read(*plan(folder, "t"))
    assert found == wanted
    assert not account.counts
    broker.stop()
