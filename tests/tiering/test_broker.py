"""A broker with a remote tier end to end: produce, upload, restart, delete.

The tier is a folder accessed through the real storage process; the same life with MinIO is marked
real. The bucket is read by kafkawire.manifest alone, like Spark and a restore do.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.manifest.keys import SEGMENTS
from kafkawire.manifest.reader import NoManifest, read_manifest
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.server.run import Server
from kafkawire.tiering.retention import object_deletion as removal
from kafkawire.tiering.service import Tiering
from kafkawire.tiering.upload.scheduler import Reason
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import until

QUICK = {
    "tiering_max_lag_ms": "5000",
    "tiering_min_object_bytes": "1",
    "tier_delete_delay_ms": "1",
    "log_segment_delete_delay_ms": "1",
    "cut_interval_ms": "100",
    "journal_roll_ms": "300",
    "tier_cache_bytes": str(16 << 20),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time for which deletions are collected."""
    monkeypatch.setattr(removal, "SCAN_INTERVAL_S", 0.2)


def tier_of(server: Server) -> Tiering:
    tiering = server.broker.tiering
    assert tiering is not None
    return tiering


def finished_objects(data: Path) -> int:
    with closing(sqlite3.connect(data / "metadata.db")) as connection:
        query = "SELECT count(*) FROM remote_objects WHERE state = 1"
        return int(connection.execute(query).fetchone()[0])


class Folder:
    """The bucket as a reader without a broker sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def segments(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for file in sorted(self.path.glob(f"{SEGMENTS}*.segment")):
            with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
                found[file.stem] = file.read_bytes()
        return found

    def end(self, topic: str) -> int:
        """The end of partition 0 according to the manifest; -1: unknown."""
        row = self._row(topic)
        return -1 if row is None else row[1]

    def start(self, topic: str) -> int:
        row = self._row(topic)
        return -1 if row is None else row[0]

    def _row(self, topic: str) -> tuple[int, int] | None:
        try:
            manifest = read_manifest(lambda key: (self.path / key).read_bytes())
        except NoManifest:
            return None
        facts = manifest.topics.get(topic)
        if facts is None:
            return None
        row = manifest.get_partition(facts.partitions[0])
        return None if row is None else (row.log_start, row.end)


def files(data: Path) -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in data.glob("brokers/*/segments/*.segment")}


async def uploaded(server: Server, end: int, topic: str = "t") -> None:
    """Wait until partition 0 of a topic is in the tier up to `end`."""
    number = server.broker.catalog.by_name[topic].partitions[0].number
    partition = server.broker.log.partitions[number]
    await until(lambda: partition.commit_offset == end, f"commit offset {end}")


async def fetch_values(client: Client, topic: str) -> list[bytes]:
    answer = await client.call(fetch(topic, 0, wait_ms=30_000), 12)
    return values(answer.responses[0].partitions[0])


def trim(topic: str, offset: int, timeout_ms: int = 10_000) -> DeleteRecordsRequest:
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=timeout_ms
    )


@pytest.mark.real
async def test_life_cycle_of_records(tmp_path: Path) -> None:
    bucket, data = Folder(tmp_path / "bucket"), tmp_path / "data"
    written = [b"%d" % at for at in range(100)]
    async with running(data, tier_url=str(bucket.path), **QUICK) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.call(produce("t", batch(*written)), 9)
        await uploaded(server, 100)
        # An object is a segment, byte for byte, and the manifest says so.
        assert list(bucket.segments().values()) == list(files(data).values())
        assert bucket.end("t") == 100
        number = server.broker.catalog.by_name["t"].partitions[0].number
        (row,) = await server.broker.storage.load_partitions([number])
        assert (row.dispatch_offset, row.commit_offset) == (100, 100)
        await client.close()
    before = bucket.segments()
    async with running(data, tier_url=str(bucket.path), **QUICK) as server:
        client = await Client.connect(port_of(server))
        tiering = tier_of(server)
        await until(lambda: tiering.state == "attached", "attached")
        assert await fetch_values(client, "t") == written
        assert bucket.segments() == before  # a start uploads nothing twice
        await client.call(produce("t", batch(b"more")), 9)
        await uploaded(server, 101)
        # After the response, deleted records cannot be restored from the bucket.
        answer = await client.call(trim("t", 100), 2)
        assert answer.topics[0].partitions[0].low_watermark == 100
        assert bucket.start("t") == 100
        await until(lambda: before.keys().isdisjoint(bucket.segments()), "the first object goes")
        assert len(bucket.segments()) == 1
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000)
        await client.call(deletion, 6)
        await until(lambda: not bucket.segments(), "the last object goes")
        await until(lambda: bucket.end("t") == -1, "the manifest forgets the topic")
        with closing(sqlite3.connect(data / "metadata.db")) as sql:
            rows = sql.execute
            await until(lambda: not rows("select * from remote_objects").fetchall(), "its row goes")
        await client.close()


@pytest.mark.slow
async def test_tiering_can_be_disabled_per_topic(tmp_path: Path) -> None:
    bucket, data = Folder(tmp_path / "bucket"), tmp_path / "data"
    async with running(data, tier_url=str(bucket.path), **QUICK) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await make(client, "stays", remote_storage_enable="false")
        await client.call(produce("stays", batch(b"here")), 9)
        await client.call(produce("t", batch(b"there")), 9)
        await uploaded(server, 1)
        await until(lambda: len(files(data)) == 2, "two classes of segments")
        (there,) = bucket.segments().values()
        assert b"there" in there
        assert b"here" not in there.replace(b"there", b"")
        await client.close()


@pytest.mark.slow
async def test_pause_stops_uploads_and_is_reported(tmp_path: Path) -> None:
    bucket, data = Folder(tmp_path / "bucket"), tmp_path / "data"
    async with running(data, tier_url=str(bucket.path), tier_paused="true", **QUICK) as server:
        client = await Client.connect(port_of(server))
        tiering = tier_of(server)
        await make(client, "t")
        await client.call(produce("t", batch(b"x")), 9)
        await until(lambda: bool(tiering.dispatcher.candidates), "a segment is registered")
        (held,) = tiering.dispatcher.candidates
        why = tiering.dispatcher.why(held, server.broker.env.clock.monotonic())
        assert why.reason is Reason.PAUSED
        assert not bucket.segments()
        server.broker.config.tier_paused = False
        tiering.broker_changed()
        await uploaded(server, 1)
        await client.close()


@pytest.mark.slow
async def test_start_does_not_wait_for_tier(tmp_path: Path) -> None:
    """The tier's path is a file instead of a folder: the broker serves, and reports the problem."""
    (tmp_path / "bucket").write_text("no folder")
    data = tmp_path / "data"
    async with running(data, tier_url=str(tmp_path / "bucket" / "x"), **QUICK) as server:
        client = await Client.connect(port_of(server))
        tiering = tier_of(server)
        await make(client, "t")
        await client.call(produce("t", batch(b"x")), 9)
        await until(lambda: tiering.error is not None, "the failure is known")
        assert tiering.state != "attached"
        await until(lambda: bool(tiering.dispatcher.candidates), "a segment is registered")
        (held,) = tiering.dispatcher.candidates
        why = tiering.dispatcher.why(held, server.broker.env.clock.monotonic())
        assert why.reason is Reason.ERROR
        assert await fetch_values(client, "t") == [b"x"]
        await client.close()


@pytest.mark.slow
async def test_delete_records_times_out_and_bucket_follows(
    tmp_path: Path,
) -> None:
    bucket, data = Folder(tmp_path / "bucket"), tmp_path / "data"
    async with running(data, tier_url=str(bucket.path), **QUICK) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.call(produce("t", batch(b"0", b"1", b"2")), 9)
        await uploaded(server, 3)
        manifest = bucket.path / "manifest"
        away = bucket.path / "away"
        manifest.rename(away)
        manifest.write_text("no folder")  # nothing can be stored there
        answer = (await client.call(trim("t", 2, timeout_ms=200), 2)).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        number = server.broker.catalog.by_name["t"].partitions[0].number
        assert server.broker.log.partitions[number].log_start == 2  # it has moved nevertheless
        manifest.unlink()
        away.rename(manifest)
        await until(lambda: bucket.start("t") == 2, "the manifest follows")
        await client.close()


@pytest.mark.slow
def test_broker_without_tier_imports_no_tiering(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from tests.kit.server import running

async def main():
    async with running(Path({str(tmp_path)!r}) / "data"):
        print([name for name in sys.modules if name.split(".")[0] in ("tiering", "boto3")])

asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert ran.stdout == "[]\n"


@pytest.mark.slow
async def test_start_is_refused_with_wrong_tier(
    tmp_path: Path,
) -> None:
    bucket, empty = Folder(tmp_path / "bucket"), Folder(tmp_path / "empty")
    async with running(tmp_path / "one", tier_url=str(bucket.path), **QUICK) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.call(produce("t", batch(b"x")), 9)
        await until(lambda: finished_objects(tmp_path / "one") > 0, "a segment is uploaded")
        await client.close()
    for data, tier, why in [
        (
            "two",
            bucket,
            f"belongs to cluster .*kafkawire restore file://{bucket.path} ",
        ),
        (
            "one",
            empty,
            f"are in file://{bucket.path}, .*kafkawire tier move --to file://{empty.path}",
        ),
    ]:
        with pytest.raises(IdentityError, match=why):
            async with running(tmp_path / data, tier_url=str(tier.path), **QUICK):
                pass
    moved = tmp_path / "moved"
    bucket.path.rename(moved)  # the same objects under another URL: the owner file shows it
    async with running(tmp_path / "one", tier_url=str(moved), **QUICK) as server:
        await until(lambda: tier_of(server).state == "attached", "attached")


@pytest.mark.slow
async def test_bucket_of_other_cluster_is_unchanged(tmp_path: Path) -> None:
    bucket = Folder(tmp_path / "bucket")
    async with running(tmp_path / "one", tier_url=str(bucket.path), **QUICK) as server:
        await until(lambda: tier_of(server).state == "attached", "attached")
    taken = tmp_path / "taken"
    bucket.path.rename(taken)
    async with running(tmp_path / "two", tier_url=str(bucket.path), **QUICK) as server:
        await until(lambda: tier_of(server).state == "attached", "attached")
    shutil.rmtree(bucket.path)  # another cluster takes the bucket of a stopped broker
    taken.rename(bucket.path)
    before = {file: file.read_bytes() for file in bucket.path.rglob("*") if file.is_file()}
    serving = {**QUICK, "tier_url": str(bucket.path), "tier_fenced_action": "serve"}
    async with running(tmp_path / "two", **serving) as server:
        client = await Client.connect(port_of(server))
        tiering = tier_of(server)
        await until(lambda: tiering.state == "owned by another", "the owner is known")
        await make(client, "t")
        await client.call(produce("t", batch(b"x")), 9)
        await until(lambda: bool(tiering.dispatcher.candidates), "a segment is registered")
        (held,) = tiering.dispatcher.candidates
        why = tiering.dispatcher.why(held, server.broker.env.clock.monotonic())
        assert why.reason is Reason.OWNED_BY_OTHER
        # The log start is not to be published there, so no request waits for it.
        answer = await client.call(trim("t", 1), 2)
        assert answer.topics[0].partitions[0].low_watermark == 1
        await client.close()
    after = {file: file.read_bytes() for file in bucket.path.rglob("*") if file.is_file()}
    assert after == before


@pytest.mark.real
async def test_objects_in_minio_equal_segments(
    tmp_path: Path, tier_url: str, minio: object
) -> None:
    from tests.kit.minio import Minio

    assert isinstance(minio, Minio)
    data = tmp_path / "data"
    async with running(data, tier_url=tier_url, **QUICK) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", partitions=3)
        for index in range(3):
            written = [b"%d-%d " % (index, at) * 50 for at in range(1000)]
            await client.call(produce("t", batch(*written), index=index), 9)
        await uploaded(server, 1000)
        bucket = tier_url.removeprefix("s3://").split("/")[0]
        s3 = minio.client()
        listed = s3.list_objects_v2(Bucket=bucket)["Contents"]
        keys = [each["Key"] for each in listed if each["Key"].endswith(".segment")]
        bodies = [s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys]
        assert sorted(bodies) == sorted(files(data).values())
        assert bodies
        await client.close()


async def test_settings_may_change_before_the_tier_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog of other brokers is followed meanwhile."""
    start = Tiering.start

    async def after_a_change(self: Tiering) -> None:
        self.config.tier_paused = True
        self.broker_changed()
        await start(self)

    monkeypatch.setattr(Tiering, "start", after_a_change)
    async with running(tmp_path / "data", tier_url=str(tmp_path / "tier"), **QUICK) as server:
        tiering = tier_of(server)
        await until(lambda: tiering.state == "attached")
        assert tiering.dispatcher.paused
