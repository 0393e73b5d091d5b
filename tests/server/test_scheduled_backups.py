"""Backups at intervals: content of the store after failures, rotation, retries, restore."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import run
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.objectstore.errors import StoreError
from kafkawire.server import backups as scheduled
from kafkawire.server.backups import BackupError, ScheduledBackups
from kafkawire.tiering.backups import INDEX, name_of, read_index, store_backup
from tests.kit.cli import no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.client import Client
from tests.kit.env import InlineOffload, SettableClock
from tests.kit.server import port_of, running
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore
from tests.kit.waiting import until

DAY_MS = 86_400_000


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A backup of two files."""
    (tmp_path / "groups").mkdir()
    (tmp_path / "metadata.db").write_bytes(b"rows")
    (tmp_path / "groups" / "x").write_bytes(b"group")
    names = ("metadata.db", "groups/x")
    return {name: str(tmp_path / name) for name in names}


class Failing(FakeStore):
    """A store in which every call from the `left`th on fails."""

    left = 1 << 30

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreError("Down", "the bucket is down")

    async def put(self, *given: Any, **named: Any) -> Any:
        self._spend()
        return await super().put(*given, **named)

    async def upload(self, *given: Any, **named: Any) -> Any:
        self._spend()
        return await super().upload(*given, **named)

    async def delete(self, *given: Any, **named: Any) -> Any:
        self._spend()
        return await super().delete(*given, **named)


async def named(store: FakeStore) -> set[str]:
    """The keys that the index names."""
    index = await read_index(store)
    assert index is not None
    return {INDEX} | {f"{each.name}/{name}" for each in index.backups for name in each.files}


async def test_newest_backups_are_kept_and_older_ones_deleted(files: dict[str, str]) -> None:
    store = FakeStore(FakeBucket())
    for day in range(5):
        await store_backup(store, "c", day * DAY_MS, files, 3)
    index = await read_index(store)
    assert index is not None
    assert [each.name for each in index.backups] == [name_of(day * DAY_MS) for day in (2, 3, 4)]
    assert index.newest() == index.backups[-1]
    assert set(store.objects) == await named(store)
    assert store.objects[f"{name_of(4 * DAY_MS)}/groups/x"] == b"group"
    assert store.requests["list"] == 0
    with pytest.raises(StoreError, match="of cluster c"):
        await store_backup(store, "other", 9 * DAY_MS, files, 3)


async def test_failure_at_any_call_leaves_no_unindexed_object(
    files: dict[str, str],
) -> None:
    for calls in range(12):
        store = Failing(FakeBucket())
        for day in range(2):
            await store_backup(store, "c", day * DAY_MS, files, 2)
        store.left = calls
        try:
            await store_backup(store, "c", 2 * DAY_MS, files, 2)
        except StoreError:
            assert set(store.objects) <= await named(store)
            index = await read_index(store)
            assert index is not None
            newest = index.newest()
            assert newest is not None
            assert {f"{newest.name}/{name}" for name in newest.files} <= set(store.objects)
        store.left = 1 << 30
        await store_backup(store, "c", 3 * DAY_MS, files, 2)
        assert set(store.objects) == await named(store)
        index = await read_index(store)
        assert index is not None
        assert all(each.complete for each in index.backups)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1}'])
async def test_damaged_index_is_reported(body: bytes) -> None:
    store = FakeStore(FakeBucket())
    await store.put(INDEX, body)
    with pytest.raises(StoreError, match=INDEX):
        await read_index(store)


class World:
    """A clock that advances while the schedule sleeps, until `ends_ms`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.clock = SettableClock()
        self.offload = InlineOffload()
        self.random = SimpleNamespace(random=lambda: 0.5)
        self.begun_ms = self.clock.ms
        self.ends_ms = 0
        self.made: list[int] = []
        self.fails = 0
        self.here = True
        self.store = FakeStore(FakeBucket())
        texts = {"backup.url": "s3://bucket/b", **settings}
        self.config = BrokerConfig(texts)
        self.folder = folder / "backup"

    async def sleep(self, seconds: float) -> None:
        self.clock.ms += int(seconds * 1000)
        if self.clock.ms > self.begun_ms + self.ends_ms:
            raise asyncio.CancelledError

    async def make(self, dest: str) -> None:
        if self.fails:
            self.fails -= 1
            raise BackupError("the broker does not answer")
        Path(dest).mkdir(parents=True)  # noqa: ASYNC240 (a test may block its loop)
        (Path(dest) / "metadata.db").write_bytes(b"x")
        self.made.append(self.clock.ms - self.begun_ms)

    async def run(self, hours: float) -> ScheduledBackups:
        self.ends_ms += int(hours * 3_600_000)
        made = ScheduledBackups(
            self, self.config, "c", str(self.folder), self.store, self.make,  # type: ignore[arg-type]
            lambda: self.here,
        )  # fmt: skip
        with pytest.raises(asyncio.CancelledError):
            await made.run()
        return made


async def test_one_backup_per_interval_across_restarts(tmp_path: Path) -> None:
    world = World(tmp_path, **{"backup.keep": "2"})
    first = await world.run(49)
    assert [round(at / 3_600_000) for at in world.made] == [0, 24, 48]
    assert first.last_ms == world.begun_ms + world.made[-1]
    await world.run(20)  # another process
    assert len(world.made) == 3
    await world.run(6)
    assert [round(at / 3_600_000) for at in world.made] == [0, 24, 48, 72]
    index = await read_index(world.store)
    assert index is not None
    assert len(index.backups) == 2
    assert not world.folder.exists()


@pytest.mark.parametrize("ahead_days", [0.5, 400])
async def test_clock_that_was_ahead_stops_no_backups(tmp_path: Path, ahead_days: float) -> None:
    world = World(tmp_path)
    ahead_ms = int(ahead_days * 24 * 3_600_000)
    world.clock.ms += ahead_ms
    world.ends_ms += ahead_ms
    await world.run(1)
    assert len(world.made) == 1
    world.clock.ms -= ahead_ms
    world.ends_ms -= ahead_ms
    await world.run(48)
    assert len(world.made) >= 2


async def test_one_broker_of_a_cluster_makes_the_backups(tmp_path: Path) -> None:
    world, other = World(tmp_path / "1"), World(tmp_path / "2")
    other.store, other.here = world.store, False
    await world.run(25)
    waits = await other.run(25)
    assert (len(world.made), other.made) == (2, [])
    assert waits.last_ms == world.begun_ms + world.made[-1]
    other.here = True  # the first broker has ended
    await other.run(25)
    assert len(other.made) == 1


async def test_failures_are_retried_and_become_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, **{"backup.interval.ms": "3600000"})
    await world.run(1)
    world.fails = 10_000
    run = await world.run(4)
    levels = [record.levelno for record in caplog.records if "failed" in record.getMessage()]
    assert levels[0] == logging.WARNING
    assert levels[-1] == logging.ERROR
    assert levels == sorted(levels)
    assert run.failures == len(levels) < 60  # backs off
    world.fails = 0
    before = len(world.made)
    await world.run(1)
    assert len(world.made) > before


class KilledChild(World):
    """The child ends while it writes its temporary folder."""

    async def make(self, dest: str) -> None:
        (Path(f"{dest}.unfinished") / "groups").mkdir(parents=True)
        raise BackupError("the backup process exited with code -9")


class FullDisk(World):
    """The disk of the broker is full."""

    async def make(self, dest: str) -> None:
        await super().make(dest)
        raise OSError(28, "No space left on device")


class BucketAway(World):
    """The bucket is away from the second call of an upload on."""

    def __init__(self, folder: Path, **settings: str) -> None:
        super().__init__(folder, **settings)
        self.store = Failing(FakeBucket())
        self.store.left = 1


@pytest.mark.parametrize("world_of", [KilledChild, FullDisk, BucketAway])
async def test_failed_backup_leaves_no_local_file(
    world_of: type[World], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = await world_of(tmp_path).run(0.02)
    assert run.failures >= 1
    assert caplog.messages[0].startswith("backup to s3://bucket/b failed, retrying in")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["backup.url=data/b"], "outside the data folder"),
        (["backup.url=tier/b", "tier.url=tier"], "outside tier.url"),
        (["backup.url=ftp://x"], "no backup location that is known"),
        (["backup.interval.ms=1"], "at least 60000"),
        (["backup.keep=0"], "from 1 to 1000"),
    ],
)
def test_invalid_backup_urls_are_refused(
    settings: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(Given({"data": ["data"]}, settings, None, True), {})
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert words in said


@pytest.mark.slow
async def test_scheduled_backup_can_be_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled, "FIRST_S", 0.01)
    place = f"file://{tmp_path}/backups"
    async with running(tmp_path / "data", backup_url=place) as server:
        client = await Client.connect(port_of(server))
        await client.call(CreateTopicsRequest([CreatableTopic("t", 3, 1)], 5000), 7)
        await client.close()
        assert server.backups is not None
        made = server.backups
        await until(lambda: made.last_ms > 0)
    index = json.loads((tmp_path / "backups" / INDEX).read_text())
    assert index["backups"][-1]["complete"]
    words = ["restore", place, "--data", str(tmp_path / "new"), "--json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    async with running(tmp_path / "new") as server:
        assert "t" in server.broker.catalog.by_name
    empty = ["restore", f"file://{tmp_path}/none", "--data", str(tmp_path / "other")]
    result = await asyncio.to_thread(CliRunner().invoke, app, empty)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "none").exists()
