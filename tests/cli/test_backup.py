"""`kafkawire backup` and `restore`: the content of a backup, and refusal of everything else.

Covers: kafkawire.cli.backup, kafkawire.cli.restore.command,
kafkawire.metadata.copies.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkawire.metadata import copies, tables
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint, ProducerEntry
from kafkawire.metadata.sql import SqlMetadata, open_metadata
from kafkawire.metadata.store import MetadataError, SqlStore
from kafkawire.offsets.catalog import object_logs
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    LIVE,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    Swap,
    TierRow,
    pack_ranges,
)
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, produce
from tests.kit.postgres import new_database


async def some_metadata(store: SqlStore) -> None:
    """Topics, a setting, a checkpoint, a segment and its object in a remote tier, a log there."""
    await store.open()
    await store.register_broker(1, {"P": ("h", 1)}, None)
    (info, _) = await store.create_topics([NewTopic("a", [1, 1]), NewTopic("__b", [1], {}, True)])
    await store.alter_configs([ConfigChange(TOPIC_RESOURCE, "a", "retention.ms", "5")])
    number = info.partitions[0].number
    storage = SqlStorage(store, 1, lambda: 7)
    entry = ProducerEntry(5, 0, [(0, 1, 2, 3)])
    saved = PartitionCheckpoint(number, 40, 10, [(0, 0)], [entry])
    await storage.save_checkpoint(Checkpoint(1, 99, [saved]))
    row = SegmentRow(bytes(16), 1, 0)
    (row.id,) = await storage.start_segments([row])
    await storage.finish_segments(
        Swap([(row, [SegmentRange(number, 0, 10, 40, 64, 9, 0, 0, 0, 0, 1, 30)])])
    )
    await storage.save_tier(TierRow(0, "s3://b/p"))
    made = ObjectRow(b"o" * 16, row.id, 1, ranges=pack_ranges([(number, 10, 40)]))
    await storage.start_objects([made], {number: 40})
    await storage.finish_objects([made.uuid], {number: 40})
    await storage.set_local([row.id], False)
    assert await store.transact(
        lambda session: object_logs.open_log(session, 1, 1, "file:///tier", 7)
    )
    await store.close()


def test_every_table_is_copied(tmp_path: Path) -> None:
    copies.new_sqlite(str(tmp_path / "new.db"))
    assert set(copies.counts(str(tmp_path / "new.db"))) == set(tables.metadata.tables)


async def test_copy_of_open_database_restarts_after_change(tmp_path: Path) -> None:
    await some_metadata(open_metadata("", str(tmp_path)))
    source, target = str(tmp_path / "metadata.db"), str(tmp_path / "copy" / "metadata.db")
    (tmp_path / "copy").mkdir()
    writer = sqlite3.connect(source, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")  # while the broker writes
    copies.copy_sqlite(source, target)
    writer.execute("ROLLBACK")
    writer.close()
    assert copies.counts(target) == copies.counts(source)
    copies.enter_ends(target, [(1, 5, 50), (2, 0, 7)])
    copies.remove_records(target)
    copies.check(target)
    store = open_metadata("", str(tmp_path / "copy"))
    catalog = await store.open()
    info = catalog.by_name["a"]
    assert (info.configs, [p.leader_epoch for p in info.partitions]) == (
        {"retention.ms": "5"},
        [1, 1],
    )
    storage = SqlStorage(store, 1, lambda: 0)
    rows = await storage.load_partitions([1, 2, 3])
    assert [row.checkpoint for row in rows] == [
        PartitionCheckpoint(1, 50, 50, [(1, 50)], []),
        PartitionCheckpoint(2, 7, 7, [(1, 7)], []),
        None,
    ]
    assert [row.mappings for row in rows] == [[], [], []]
    assert {(row.dispatch_offset, row.commit_offset) for row in rows} == {(0, 0)}
    assert await storage.objects(1, [COPY_STARTED, COPY_FINISHED, DELETE_STARTED], 9) == []
    assert await storage.tiers() == []
    assert await storage.load_log_position(1) == 0
    assert await store.transact(object_logs.load_all) == []
    await store.close()


def test_file_that_is_not_metadata_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"\x07" * 5000)
    with pytest.raises(MetadataError, match=r"bad\.db"):
        copies.copy_sqlite(str(tmp_path / "bad.db"), str(tmp_path / "x.db"))
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(MetadataError, match="no metadata of kafkawire"):
        copies.copy_sqlite(str(tmp_path / "empty.db"), str(tmp_path / "y.db"))


@pytest.mark.real
async def test_postgres_is_exported_and_restored(postgres_url: str, tmp_path: Path) -> None:
    import asyncio

    one_url, other_url = await new_database(postgres_url), await new_database(postgres_url)
    await some_metadata(SqlMetadata(one_url))
    target = str(tmp_path / "metadata.db")
    await asyncio.to_thread(copies.export, one_url, target)
    await asyncio.to_thread(copies.fill, other_url, target)
    with pytest.raises(MetadataError, match="is not empty"):
        await asyncio.to_thread(copies.fill, other_url, target)
    one, other = SqlMetadata(one_url), SqlMetadata(other_url)
    first, second = await one.open(), await other.open()
    assert list(first.by_name) == list(second.by_name)
    assert first.cluster_id == second.cluster_id
    assert first.by_name["a"].configs == second.by_name["a"].configs
    stored = [SqlStorage(store, 1, lambda: 0) for store in (one, other)]
    loaded = [await each.load_partitions([1, 2, 3]) for each in stored]
    assert loaded[0] == loaded[1]
    assert loaded[0][0].mappings
    assert (loaded[0][0].dispatch_offset, loaded[0][0].commit_offset) == (40, 40)
    for method, arguments in (
        ("objects", (1, [COPY_FINISHED], 9)),
        ("tiers", ()),
        ("segments", (1, [LIVE], 9)),
    ):
        found = [await getattr(each, method)(*arguments) for each in stored]
        assert found[0] == found[1]
        assert len(found[0]) == 1
    logs = [await store.transact(object_logs.load_all) for store in (one, other)]
    assert logs == [[ObjectLog(1, 1, "file:///tier", 0, None, 7)]] * 2
    row = SegmentRow(b"n" * 16, 1, 0)
    (made,) = await stored[1].start_segments([row])
    assert made > 1, "the id counter continues after the rows"
    await one.close()
    await other.close()


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A backup made while a broker works, and its manifest."""
    base = tmp_path_factory.mktemp("backup")
    with BrokerProcess(base / "data") as broker:
        server = broker.bootstrap
        assert Typed(server, "topics", "create", "b", "--partitions", "2", "--config",
                     "retention.ms=77000").code == 0  # fmt: skip
        produce(server, "b", {0: 10, 1: 3})
        consumer = KafkaConsumer(bootstrap_servers=server, group_id="g")
        consumer.assign([TopicPartition("b", 0)])
        for offset in (2, 4):
            consumer.commit({TopicPartition("b", 0): OffsetAndMetadata(offset, "note", -1)})
        consumer.close(autocommit=False)
        made = Typed(server, "backup", str(base / "saved"), "--data", str(base / "data"), "--json")
        with sqlite3.connect(base / "metadata.db") as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
        (base / "retried.unfinished").mkdir()  # of a backup that was killed
        (base / "retried.unfinished" / "metadata.db").write_bytes(b"half")
        for folder, code in ((base, 1), (base / "data", 0)):
            tried = Typed(server, "backup", str(base / "retried"), "--data", str(folder))
            assert (tried.code, tried.err.count("\n")) == (code, code)
            assert not (base / "retried.unfinished").exists()
        tried = Typed(server, "backup", str(base / "new/er/est"), "--data", str(base))
        assert (tried.code, (base / "new").exists()) == (1, False)
        yield base / "saved", made.json


@pytest.mark.parametrize("tier", [False, True])
def test_sqlite_file_outside_the_new_folder_is_wrong_input(tmp_path: Path, tier: bool) -> None:
    """The folder would have a file of its own, and the other one nothing."""
    source, data, other = tmp_path / "source", tmp_path / "new", tmp_path / "other.db"
    (source / "manifest" if tier else source).mkdir(parents=True)
    words = ["restore", str(source), "--data", str(data), "--metadata", f"sqlite:///{other}"]
    refused = Typed("", *words)
    assert (refused.code, refused.out) == (2, "")
    assert f"--metadata=sqlite:///{other}: it must be a PostgreSQL database" in refused.err
    assert not data.exists()
    assert not other.exists()


@pytest.mark.real
def test_manifest_of_backup_lists_its_content(backed_up: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = backed_up
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    assert manifest["rows"]["topics"] == 2
    assert manifest["group_records"] == 1
    assert {name.split("/")[0] for name in manifest["files"]} == {"metadata.db", "groups"}


@pytest.mark.real
def test_broker_restored_from_backup_continues(
    backed_up: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    data = tmp_path / "new"
    done = Typed("", "restore", str(backed_up[0]), "--data", str(data))
    assert (done.code, done.err) == (0, "")
    for _ in range(2):  # and again after a restart
        with BrokerProcess(data) as broker:
            check(broker.bootstrap)


def check(server: str) -> None:
    (topic,) = Typed(server, "topics", "describe", "b", "--json").json
    assert topic["configs"] == {"retention.ms": "77000"}
    (group,) = Typed(server, "groups", "describe", "g", "--json").json
    (row,) = group["offsets"]
    assert (row["committed"], row["metadata"]) == (4, "note")
    rows = Typed(server, "offsets", "describe", "b", "--json").json
    before = rows[0]["log_end"]
    assert before >= 10
    assert [row["log_start"] for row in rows] == [10, 3], "records must not be in the backup"
    producer = KafkaProducer(bootstrap_servers=server, acks="all")
    sent = producer.send("b", b"after", partition=0).get(90)
    producer.close()
    assert sent.offset == before, "an offset was assigned twice or skipped"
    lines = Typed(server, "consume", "b", "--json").lines
    assert [line["value"] for line in lines] == ["after"] * (before - 10 + 1)


@pytest.mark.real
@pytest.mark.parametrize("what", ["missing", "changed", "added", "manifest", "format", "none"])
def test_damaged_backup_is_refused_without_writing(
    backed_up: tuple[Path, dict[str, Any]], tmp_path: Path, what: str
) -> None:
    import shutil

    saved = tmp_path / "saved"
    shutil.copytree(backed_up[0], saved)
    sentence = {
        "missing": "metadata.db is missing",
        "changed": "metadata.db is damaged",
        "added": "more is not in the manifest",
        "manifest": "manifest.json is damaged",
        "format": "has format version 9, this kafkawire supports 1",
        "none": "is not a backup",
    }[what]
    manifest = saved / "manifest.json"
    if what == "missing":
        (saved / "metadata.db").unlink()
    elif what == "changed":
        data = bytearray((saved / "metadata.db").read_bytes())
        data[5000] ^= 1
        (saved / "metadata.db").write_bytes(data)
    elif what == "added":
        (saved / "more").write_text("x")
    elif what == "manifest":
        manifest.write_text(manifest.read_text()[:50])
    elif what == "format":
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 9'))
    else:
        manifest.unlink()
    refused = Typed("", "restore", str(saved), "--data", str(tmp_path / "new"))
    assert (refused.code, refused.out) == (1, "")
    assert sentence in refused.err
    assert refused.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]
