"""`kafkawire tier restore`: creates a complete data folder from a bucket, or nothing.

Covers: kafkawire.cli.restore.failures, kafkawire.cli.restore.steps, kafkawire.restore.insert,
kafkawire.restore.bucket, kafkawire.tiering.store.retrying.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kafkawire.cli.app import app
from kafkawire.cli.restore import from_bucket as restore
from kafkawire.cli.shared.output import without_password
from kafkawire.codec.batches import HEAD_BYTES
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.worker_jobs import ScrubArguments, find_job, no_pace
from kafkawire.log.segments.file.open import read_lost_ranges
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import ProducerEntry
from kafkawire.metadata.sql import open_metadata, sqlite_metadata
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    LIVE,
    ObjectRow,
    PartitionRow,
    SegmentRow,
    TierRow,
    unpack_ranges,
)
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from kafkawire.restore.evidence import EPOCH_MARGIN, NUMBER_MARGIN
from kafkawire.restore.plan import RestorePlan
from tests.kit.json_schema import check_document
from tests.kit.postgres import postgres
from tests.kit.tier.buckets import CLUSTER, MADE_MS, Bucket, Share, Topic, uuid
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

ORDERS = Topic("orders", [3, 4], {"retention.ms": "500000"})
GROUPS = Topic("__consumer_offsets", [9], {"cleanup.policy": "compact"}, internal=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the tier's folder without a separate process."""

    def opened(url: str, _: object) -> FakeStore:
        folder, bucket = Path(parse_tier(url).folder), FakeBucket()
        for path in folder.rglob("*"):
            if path.is_file():
                bucket.store(str(path.relative_to(folder)), path.read_bytes())
        return FakeStore(bucket)

    monkeypatch.setattr("kafkawire.cli.restore.steps.open_store", opened)


def stored(bucket: Bucket, folder: Path) -> Path:
    """The bucket as a folder tier."""
    for key, data in bucket.objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def sample() -> Bucket:
    bucket = Bucket(ORDERS, GROUPS)
    producers = [ProducerEntry(77, 1, [(0, 0, 2, 5)])]
    bucket.put(1, Share(3, 0, 5), Share(9, 0, 2))
    bucket.put(2, Share(3, 5, 8, 1, producers=producers), generation=1)
    bucket.manifest({3: (1, 8), 9: (0, 2)})
    return bucket


def run(tier: Path, data: Path, *options: str, code: int = 0, typed: str = "") -> Result:
    words = ["tier", "restore", "--tier", str(tier), "--data", str(data), *options]
    result = CliRunner().invoke(app, words, input=typed)
    assert result.exit_code == code, result.output
    return result


class Opened:
    """The metadata of a restored folder."""

    def __init__(self, data: Path) -> None:
        async def read() -> None:
            metadata = sqlite_metadata(str(data / "metadata.db"))
            self.catalog = await metadata.open()
            storage = SqlStorage(metadata, 1, lambda: 0)
            self.tiers: list[TierRow] = await storage.tiers()
            self.segments: list[SegmentRow] = await storage.segments(1, (LIVE,), 100)
            self.objects: list[ObjectRow] = await storage.objects(1, (COPY_FINISHED,), 100)
            self.partitions: dict[int, PartitionRow] = {
                row.number: row for row in await storage.load_partitions([3, 4, 9])
            }
            await storage.close()
            await metadata.close()

        asyncio.run(read())


def test_tier_of_several_brokers(tmp_path: Path, quick: None) -> None:
    """Broker 2 leads orders-0 from offset 5 on; the records below are in an object of broker 1."""
    own, other = Bucket(ORDERS, GROUPS), Bucket(ORDERS, GROUPS)
    own.put(1, Share(3, 0, 5), Share(9, 0, 2))
    own.manifest({3: (0, 0), 9: (0, 2)})
    other.put(2, Share(3, 5, 8, 1), Share(4, 0, 4))
    other.manifest({3: (1, 8), 4: (0, 4)})
    tier, data = stored(own, tmp_path / "tier"), tmp_path / "data"
    stored(other, tier / "nodes" / "2")
    output = run(tier, data, "--yes").output
    assert "The tier is of several brokers" in output
    assert "Doubtful" not in output
    found = Opened(data)
    urls = [f"file://{tier}", f"file://{tier}/nodes/2"]
    assert [(row.url, row.state) for row in found.tiers] == list(zip(urls, (0, 1), strict=True))
    assert {row.uuid: row.tier for row in found.objects} == {uuid(1): 0, uuid(2): 1}
    ranges = [(m.base_offset, m.end_offset) for m in found.partitions[3].mappings]
    assert ranges == [(0, 5), (5, 8)]
    assert [found.partitions[number].commit_offset for number in (3, 4, 9)] == [8, 4, 2]
    checkpoint = found.partitions[3].checkpoint
    assert checkpoint is not None
    assert (checkpoint.log_start, checkpoint.next_offset) == (1, 8)
    assert (data / "brokers" / "1" / "tier-move").is_file()


def test_restored_rows(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    output = run(tier, data, "--yes").output
    assert f"Start the broker: kafkawire serve --data {data} --tier file://{tier}" in output
    found = Opened(data)
    catalog = found.catalog
    assert catalog.cluster_id == CLUSTER
    assert catalog.broker_configs(1) == {"log.retention.ms": "7"}
    orders, groups = catalog.by_name["orders"], catalog.by_name["__consumer_offsets"]
    assert (orders.id, orders.configs, orders.created_ms) == (ORDERS.id, ORDERS.configs, 5)
    assert (groups.internal, orders.internal) == (True, False)
    assert [(p.number, p.leader, p.leader_epoch) for p in orders.partitions] == [
        (3, 1, 3 + EPOCH_MARGIN), (4, 1, EPOCH_MARGIN),
    ]  # fmt: skip
    assert [(row.id, row.url, row.state) for row in found.tiers] == [(0, f"file://{tier}", 0)]
    one, two = found.segments
    assert (one.local, one.object, one.tier, one.uuid) == (False, uuid(1), 0, uuid(1001))
    assert (two.generation, two.retention_class, two.created_ms) == (
        1, "delete/tiered/ever", MADE_MS,
    )  # fmt: skip
    assert [each.segment_id for each in found.objects] == [one.id, two.id]
    assert unpack_ranges(found.objects[0].ranges) == [(3, 0, 5), (9, 0, 2)]
    assert found.objects[0].size_bytes == len(sample().data(segment_key(uuid(1))))
    row = found.partitions[3]
    assert row.checkpoint is not None
    assert (row.checkpoint.log_start, row.checkpoint.next_offset) == (1, 8)
    assert row.checkpoint.leader_epochs == [(3, 0), (3 + EPOCH_MARGIN, 8)]
    assert row.checkpoint.producers == [ProducerEntry(77, 1, [(0, 0, 2, 5)])]
    assert [(m.base_offset, m.end_offset, m.segment_id) for m in row.mappings] == [
        (0, 5, one.id), (5, 8, two.id),
    ]  # fmt: skip
    assert (row.dispatch_offset, row.commit_offset) == (8, 8)
    assert found.partitions[4].checkpoint is None


@pytest.mark.usefixtures("quick")
def test_lost_offsets_are_covered_by_segments_marked_lost(tmp_path: Path) -> None:
    bucket = Bucket(ORDERS)
    bucket.put(1, Share(3, 0, 5), Share(4, 0, 1))
    bucket.put(2, Share(3, 8, 9), Share(4, 6, 7))
    bucket.put(3, Share(3, 12, 14))
    data = tmp_path / "data"
    run(stored(bucket, tmp_path / "tier"), data, "--yes")
    found = Opened(data)
    local = [row for row in found.segments if row.local]
    for row, holes in zip(local, [{3: (5, 8), 4: (1, 6)}, {3: (9, 12)}], strict=True):
        path = data / "brokers" / "1" / "segments" / f"{row.uuid.hex()}.segment"
        assert path.stat().st_size == row.size_bytes
        sound = find_job("scrub")(DiskFileSystem(), ScrubArguments(str(path), row.uuid), no_pace)
        assert sound.problems == []
        for number, (base, end) in holes.items():
            (hole,) = [m for m in found.partitions[number].mappings if m.segment_id == row.id]
            assert (hole.base_offset, hole.end_offset, hole.length) == (base, end, HEAD_BYTES)
            (lost,) = read_lost_ranges(DiskFileSystem(), str(path))[number]
            assert (lost.first, lost.end) == (base, end)
        assert "/tiered/" in row.retention_class
    assert len(list((data / "brokers" / "1" / "segments").iterdir())) == 2
    ends = [m.end_offset for m in found.partitions[3].mappings]
    assert ends == [5, 8, 9, 12, 14]
    assert found.partitions[3].commit_offset == 5


@pytest.mark.usefixtures("quick")
def test_dry_run_reports_everything_and_writes_nothing(tmp_path: Path) -> None:
    bucket = sample()
    bucket.put(7, Share(3, 5, 8), cluster="another-cluster")
    bucket.put(8, Share(4, 0, 9))
    tier, data = stored(bucket, tmp_path / "tier"), tmp_path / "data"
    for key in list(bucket.objects):
        if key.startswith("manifest"):
            (tier / key).unlink()
    output = run(tier, data, "--dry-run").output
    assert f"cluster {CLUSTER}, node 1: 2 topics, 3 segments" in output
    assert "Doubtful (2):" in output
    assert "1 objects are of cluster another-cluster" in output
    document: dict[str, Any] = check_document(run(tier, data, "--dry-run", "--json").stdout)
    orders = {row["topic"]: row for row in document["topics"]}["orders"]
    assert orders == {
        "topic": "orders", "partitions": 2, "offsets": 16, "records": 17, "bytes": orders["bytes"],
        "configs": 1,
    }  # fmt: skip
    assert [doubt["kind"] for doubt in document["doubts"]] == ["manifest", "cluster"]
    assert not data.exists()


@pytest.mark.usefixtures("quick")
def test_restore_without_terminal_requires_confirmation_option(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    assert "use --yes" in run(tier, data, code=1).output
    assert not data.exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("typed", "restored"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_restore_asks_for_confirmation_on_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, restored: bool
) -> None:
    from kafkawire.cli.shared import confirm

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return typed

    class Sys:
        stdin = Terminal()

    monkeypatch.setattr(confirm, "sys", Sys())
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    output = run(tier, data, code=0 if restored else 1).output
    assert "Restore this? [y/N]" in output
    assert data.exists() == restored


@pytest.mark.usefixtures("quick")
def test_non_empty_folder_is_refused(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    data.mkdir()
    (data / "x").touch()
    assert "is not empty" in run(tier, data, "--yes", code=2).output
    assert [path.name for path in data.iterdir()] == ["x"]
    (data / "x").unlink()
    run(tier, data, "--yes")
    assert (data / "metadata.db").exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("as_url", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tier_as_source_of_restore(tmp_path: Path, as_url: bool) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    dry = ["--dry-run", "--json"]
    source = f"file://{tier}" if as_url else str(tier)
    words = ["restore", source, "--data", str(data)]
    asked = CliRunner().invoke(app, [*words, *dry])
    assert (asked.exit_code, asked.stdout) == (0, run(tier, data, *dry).stdout)
    assert not data.exists()
    assert CliRunner().invoke(app, words, input="n\n").exit_code == 1
    assert not data.exists()
    done = CliRunner().invoke(app, [*words, "--yes"])
    assert done.exit_code == 0, done.output
    assert f"{data} is restored. Start the broker: " in done.stdout
    assert set(Opened(data).partitions) == {3, 4, 9}


def test_source_of_restore_decides(tmp_path: Path) -> None:
    backup, folder, empty = tmp_path / "backup", tmp_path / "data", tmp_path / "empty"
    for path in (backup / "segments", folder, empty):
        path.mkdir(parents=True)
    (backup / "manifest.json").write_text("{}")
    for source, what in (
        (backup, "manifest.json is damaged"),
        (folder, "is not a data folder"),
        (empty, "is not a backup"),
    ):
        result = CliRunner().invoke(app, ["restore", str(source), "--data", str(folder)])
        assert result.exit_code == 1
        assert what in result.stderr
        words = ["restore", str(source), "--data", str(folder), "--deep"]
        refused = CliRunner().invoke(app, words)
        assert (refused.exit_code, "need a tier" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("quick")
def test_failed_restore_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "metadata.db")

    monkeypatch.setattr("kafkawire.cli.restore.steps.enter_offsets", fail)
    tier = stored(sample(), tmp_path / "tier")
    output = run(tier, tmp_path / "data", "--yes", code=1).output
    assert "metadata.db failed: No space left on device" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tier"]


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ("nowhere", "cannot be read"),
        ("gopher://x", "is no tier that is known"),
        ("empty", "has nothing to restore"),
    ],
)
def test_wrong_tier_is_one_sentence(tmp_path: Path, tier: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    url = tier if ":" in tier else str(tmp_path / tier)
    words = ["tier", "restore", "--tier", url, "--data", str(tmp_path / "data"), "--yes"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == (2 if ":" in tier else 1)
    assert said in result.output
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("quick")
def test_json_output_names_next_steps(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    document = check_document(run(tier, data, "--yes", "--json").stdout)
    assert document["next"] == f"kafkawire serve --data {data} --tier file://{tier}"
    assert document["doubts"] == []


@pytest.mark.usefixtures("quick")
def test_new_numbers_are_above_all_restored_ones(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    run(tier, data, "--yes")

    async def lease() -> tuple[int, int]:
        from kafkawire.metadata.catalog import NewTopic

        metadata = sqlite_metadata(str(data / "metadata.db"))
        await metadata.open()
        (info,) = await metadata.create_topics([NewTopic("new", [1])])
        first = await metadata.lease_producer_ids(10)
        await metadata.close()
        return info.partitions[0].number, first

    number, producer = asyncio.run(lease())
    assert (number, producer) == (50 + NUMBER_MARGIN, 2000 + NUMBER_MARGIN)


def test_the_command_that_follows_has_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    restore._conclude(RestorePlan(1), "data", "postgresql://u:hidden@h/db", "s3://b", False)
    assert "--metadata postgresql://u:***@h/db" in capsys.readouterr().out


@pytest.mark.real
@pytest.mark.usefixtures("quick")
def test_restore_with_metadata_in_postgres(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    with postgres() as server:
        url = f"{server}/postgres".replace("postgresql://", "postgresql+asyncpg://")
        output = run(tier, data, "--yes", "--metadata", url).output
        assert f"--metadata {without_password(url)}" in output
        assert not (data / "metadata.db").exists()
        again = run(tier, tmp_path / "again", "--yes", "--metadata", url, code=1).output
        assert "the metadata holds topics" in again

        async def read() -> tuple[str, list[SegmentRow], list[PartitionRow]]:
            metadata = open_metadata(url, str(data))
            catalog = await metadata.open()
            storage = SqlStorage(metadata, 1, lambda: 0)
            segments = await storage.segments(1, (LIVE,), 100)
            rows = await storage.load_partitions([3])
            await metadata.close()
            return catalog.cluster_id, segments, rows

        cluster_id, segments, (row,) = asyncio.run(read())
    assert cluster_id == CLUSTER
    assert [each.object for each in segments] == [uuid(1), uuid(2)]
    assert (row.commit_offset, len(row.mappings)) == (8, 2)
    assert not (tmp_path / "again").exists()
