"""Damage of metadata.db that no start reads: a running broker finds and reports it."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kafkawire.cli.shared.data_folder import check_sqlite
from kafkawire.log.io.disk import real_env
from kafkawire.metadata.copies import new_sqlite
from kafkawire.metadata.damage import PageCheck
from kafkawire.metadata.store import DamagedMetadata, MetadataError
from kafkawire.server import metadata_check
from kafkawire.server.metadata_check import MetadataCheck
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.server.test_metrics import ask, of, scrape, watched

UNREAD = "topics_version"
"""An index that a start does not read."""


def flip(path: Path, name: str) -> None:
    """Flip the bits of the first byte, the kind of the page, of a table or index."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        (kind,) = file.read(1)
        file.seek((page - 1) * size)
        file.write(bytes([kind ^ 0xFF]))


def reports(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The log lines of the check."""
    return [record for record in caplog.records if record.name == metadata_check.__name__]


async def stopped_metadata(data: Path) -> Path:
    """The metadata of a broker that had a topic and was stopped."""
    async with running(data) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.close()
    return data / "metadata.db"


@pytest.mark.slow
async def test_damage_not_read_at_start_is_found_while_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata_check, "FIRST_S", 0.0)
    file = await stopped_metadata(tmp_path)
    flip(file, UNREAD)
    async with watched(tmp_path) as (server, port):
        check = server.metadata_check
        assert check is not None
        await until(lambda: bool(check.damage), "the damage is found")
        status, body = await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert json.loads(body)["reason"] == check.damage
        assert of(await scrape(port), "kafkawire_metadata_damaged") == 1
    (line,) = reports(caplog)
    assert line.levelno == logging.CRITICAL
    assert str(file) in line.getMessage()
    assert f"`kafkawire restore --from-log --data {tmp_path}`" in line.getMessage()
    with pytest.raises(MetadataError, match="damaged"):
        check_sqlite(str(file))


@pytest.mark.slow
async def test_undamaged_file_is_checked_periodically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata_check, "FIRST_S", 0.0)
    monkeypatch.setattr(metadata_check, "INTERVAL_S", 0.0)
    async with watched(tmp_path) as (server, port):
        check = server.metadata_check
        assert check is not None
        await until(lambda: check.completed > 2, "three checks")
        client = await Client.connect(port_of(server))
        await make(client, "t")  # a writer does not wait for the check
        await client.close()
        samples = await scrape(port)
        assert of(samples, "kafkawire_metadata_damaged") == 0
        assert of(samples, "kafkawire_metadata_checks_total") > 2
        status, _ = await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
    assert not reports(caplog)


async def test_stop_interrupts_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def run(_: PageCheck) -> bool:
        begun.set()
        return not stopped.wait(60)

    monkeypatch.setattr(metadata_check, "FIRST_S", 0.0)
    monkeypatch.setattr(PageCheck, "run", run)
    monkeypatch.setattr(PageCheck, "stop", lambda _: stopped.set())
    check = MetadataCheck(real_env(), str(tmp_path / "metadata.db"), str(tmp_path))
    check.start()
    await until(begun.is_set)
    await asyncio.wait_for(check.close(), 30)
    await check.close()
    assert not reports(caplog)


async def test_check_is_stopped_at_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = threading.Event()
    monkeypatch.setattr(metadata_check, "FIRST_S", 0.0)
    monkeypatch.setattr(metadata_check, "MAX_S", 0.0)
    monkeypatch.setattr(PageCheck, "run", lambda _: not stopped.wait(60))
    monkeypatch.setattr(PageCheck, "stop", lambda _: stopped.set())
    check = MetadataCheck(real_env(), str(tmp_path / "metadata.db"), str(tmp_path))
    check.start()
    await until(lambda: bool(reports(caplog)), "a warning")
    await check.close()
    assert "kafkawire fsck" in caplog.text
    assert (check.damage, check.completed) == ("", 0)


def test_check_reports_damage_once(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    with pytest.raises(MetadataError) as absent:
        PageCheck(str(path)).run()
    assert not isinstance(absent.value, DamagedMetadata)
    assert not path.exists()
    new_sqlite(str(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("CREATE INDEX i ON t (a)")
        connection.executemany("INSERT INTO t VALUES (?)", [(at,) for at in range(10_000)])
        connection.commit()
    assert PageCheck(str(path)).run()
    check = PageCheck(str(path))
    check.stop()
    assert not check.run()
    check.stop()
    flip(path, "i")
    with pytest.raises(DamagedMetadata, match=r"file\.db is damaged"):
        PageCheck(str(path)).run()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(DamagedMetadata):
        PageCheck(str(path)).run()


@pytest.mark.slow
@pytest.mark.parametrize("default", [True, False])
async def test_broker_warns_if_metadata_and_records_are_lost_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, default: bool
) -> None:
    settings = {"tier_url": str(tmp_path / "tier"), **({"durability": "s3"} if default else {})}
    async with running(tmp_path / "data", **settings) as server:
        if not default:
            assert "is in the data folder" not in caplog.text
            client = await Client.connect(port_of(server))
            await make(client, "t", durability="s3")
            await client.close()
    if not default:
        async with running(tmp_path / "data", **settings):
            pass
    what = "the default of new topics" if default else "topic t"
    assert f"{what} has durability=s3, but the metadata" in caplog.text
    caplog.clear()
    outside = f"sqlite+aiosqlite:///{tmp_path}/metadata.db"
    other = {"tier_url": str(tmp_path / "other-tier"), "durability": "s3"}
    async with running(tmp_path / "other", metadata=outside, **other):
        pass
    assert "is in the data folder" not in caplog.text
