"""Data folder and metadata identify each other: wrong pairs are refused, crashes never are.

Covers: kafkawire.log.recovery.unknown_topics, kafkawire.log.segments.strays.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from crc32c import crc32c

from kafkawire.log.io.ports import Env
from kafkawire.log.journal.format import JournalFormatError
from kafkawire.log.recovery.identity import (
    CHECK_S,
    SPACING_S,
    Folder,
    Identity,
    IdentityError,
    IdentityRecorder,
    check_pairing,
    inspect_folder,
    read_identity,
    write_identity,
)
from kafkawire.metadata import pairing
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.pairing import SeenInSql, StoredPairing
from kafkawire.metadata.session import Session
from kafkawire.metadata.sqlite import SqliteSession, create_tables
from kafkawire.metadata.store import MetadataError
from tests.kit.env import memory_env, sim_env
from tests.kit.log.cutting import fill, started
from tests.kit.log.logs import FOLDER, World
from tests.kit.memfs import MemFileSystem
from tests.kit.server import running
from tests.kit.simloop import SimLoop, run
from tests.kit.waiting import until

T = TypeVar("T")

ID = bytes(range(16))
OURS = Identity("cluster-a", 1, ID.hex(), 7)
STORED = StoredPairing("cluster-a", 3, ID, 7, log_position=100)
PAIRED = Folder("/data", 1, OURS, True)
OLD = replace(PAIRED, identity=None)
EMPTY = replace(OLD, has_log=False)


def test_identity_round_trips_and_damage_is_detected() -> None:
    env = memory_env()
    env.fs.makedirs(FOLDER)
    assert read_identity(env.fs, FOLDER) is None
    write_identity(env.fs, FOLDER, OURS)
    assert read_identity(env.fs, FOLDER) == OURS
    file = env.fs.open(f"{FOLDER}/identity")
    whole = file.pread(4096, 0)
    for at in range(len(whole) - 1):
        file.pwritev([bytes([whole[at] ^ 1])], at)
        assert read_identity(env.fs, FOLDER) is None, at
        file.pwritev([whole[at : at + 1]], at)
    line = json.dumps({"version": 2}).encode()
    file.pwritev([b"%s\n%08x\n" % (line, crc32c(line))], 0)
    with pytest.raises(JournalFormatError, match="format version 2"):
        read_identity(env.fs, FOLDER)


@pytest.mark.parametrize(
    ("folder", "stored", "why"),
    [
        (PAIRED, StoredPairing("new", 0), "missing or empty, and /data holds the log of broker 1"),
        (OLD, StoredPairing("new", 0), "missing or empty, and /data holds the log of broker 1"),
        (PAIRED, replace(STORED, cluster_id="b"), "belongs to cluster b, /data to cluster clus"),
        (PAIRED, replace(STORED, metadata_id=bytes(16)), "not the metadata that /data was last"),
        (PAIRED, replace(STORED, metadata_id=b"", generation=0), "generation 0, .* recorded 7"),
        (PAIRED, replace(STORED, generation=6), "older than /data .generation 6, .* recorded 7"),
        (replace(PAIRED, node_id=2), STORED, "rename it to brokers/1"),
        (
            EMPTY,
            STORED,
            "holds nothing of broker 1, which used m.db with another .* node.id=2`",
        ),
        (EMPTY, replace(STORED, log_position=0), "holds nothing of broker 1"),
    ],
)
def test_wrong_pair_is_refused_with_command_to_run(
    folder: Folder, stored: StoredPairing, why: str
) -> None:
    with pytest.raises(IdentityError, match=why) as refused:
        check_pairing(folder, stored, "m.db")
    assert "`kafkawire " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("folder", "stored"),
    [
        (PAIRED, STORED),
        (PAIRED, replace(STORED, generation=8)),  # ended before the folder recorded it
        (OLD, STORED),  # the identity is lost or damaged
        (OLD, replace(STORED, metadata_id=b"", generation=0)),  # of an older version
        (EMPTY, StoredPairing("new", 0)),
        (EMPTY, StoredPairing("restored", 5)),  # restored from a backup: topics, no records
        (EMPTY, StoredPairing("new", 1, ID, 1)),  # ended while it was paired
    ],
)
def test_pair_after_crash_or_restore_is_accepted(folder: Folder, stored: StoredPairing) -> None:
    check_pairing(folder, stored, "m.db")


class Sql:
    """The tables in memory; `left` more transactions and writes of files succeed."""

    def commits(self) -> int | None:
        return None

    def __init__(self, left: int = 1 << 30) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.run(create_tables)
        self.change("INSERT INTO cluster VALUES (1, 'cluster-a', 1, 1, 0, 0, 0)")
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise MetadataError("the process has ended")

    async def transact(self, work: Callable[[Session], T]) -> T:
        self.step()
        done = self.run(work)
        self.step()
        return done

    def run(self, work: Callable[[Session], T]) -> T:
        with self.connection:
            return work(SqliteSession(self.connection))

    def change(self, statement: str) -> None:
        self.run(lambda session: session.run(statement))


async def life(env: Env, sql: Sql) -> None:
    """A start, two changes and an end; raises if it ends too early."""
    folder = inspect_folder(env.fs, "/data", FOLDER, 1)
    stored = sql.run(lambda session: pairing.load(session, 1))
    check_pairing(folder, stored, "m.db")
    recorder = IdentityRecorder(env, sql, FOLDER, 1, "cluster-a")
    env.fs.open(f"{FOLDER}/journals/0000000001.journal", create=True).close()
    env.fs.sync_dir(f"{FOLDER}/journals")
    await recorder.start(folder, stored)
    try:
        for _ in range(2):
            recorder.note_change()
            await recorder.record()
    finally:
        sql.left, left = max(sql.left, 0), sql.left
        await recorder.close()
        sql.left = left


@pytest.mark.parametrize("power", [True, False])
async def test_crash_at_any_step_keeps_pair_valid(power: bool) -> None:
    for ends in range(10):
        env = memory_env()
        assert isinstance(env.fs, MemFileSystem)
        env.fs.makedirs(f"{FOLDER}/journals")
        sql = Sql(ends)
        for _ in range(3):
            with suppress(MetadataError):
                await life(env, sql)
            sql.left = ends
            env.fs.crash() if power else env.fs.kill()
        sql.left = 1 << 30
        await life(env, sql)
        identity = read_identity(env.fs, FOLDER)
        stored = sql.run(lambda session: pairing.load(session, 1))
        assert identity is not None
        assert (identity.metadata_id, identity.generation) == (
            stored.metadata_id.hex(),
            stored.generation,
        )


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("generation", "UPDATE data_folders SET generation = generation - 1"),
        ("generation", "DELETE FROM data_folders"),
        ("catalog version", "UPDATE cluster SET version = 6"),
    ],
)
def test_database_that_goes_back_under_a_broker_is_noticed(
    name: str, older: str, changed: bool
) -> None:
    """Within a second, whether or not the broker has something to record; the folder keeps what is
    known, so that the next start refuses the copy."""
    loop, sql, reasons = SimLoop(), Sql(), list[str]()
    env = sim_env(loop, random.Random(1), MemFileSystem())
    env.fs.makedirs(f"{FOLDER}/journals")

    async def main() -> None:
        sql.change("UPDATE cluster SET version = 7")
        seen = SeenInSql(lambda: 7)
        recorder = IdentityRecorder(env, sql, FOLDER, 1, "cluster-a", "", seen, reasons.append)
        folder = inspect_folder(env.fs, "/data", FOLDER, 1)
        await recorder.start(folder, sql.run(lambda session: pairing.load(session, 1)))
        recorder.note_change()
        await asyncio.sleep(10)  # virtual time
        before = read_identity(env.fs, FOLDER)
        assert reasons == []
        sql.change(older)
        if changed:
            recorder.note_change()
        await asyncio.sleep(CHECK_S + SPACING_S)
        assert [name in why for why in reasons] == [True]
        await recorder.close()
        assert read_identity(env.fs, FOLDER) == before is not None

    run(loop, main())


def test_broker_that_uses_another_folder_since_has_no_older_database() -> None:
    """Its epoch fences this process, which says so."""
    loop, sql, reasons = SimLoop(), Sql(), list[str]()
    env = sim_env(loop, random.Random(1), MemFileSystem())
    env.fs.makedirs(f"{FOLDER}/journals")

    async def main() -> None:
        recorder = IdentityRecorder(env, sql, FOLDER, 1, "cluster-a", older=reasons.append)
        folder = inspect_folder(env.fs, "/data", FOLDER, 1)
        await recorder.start(folder, sql.run(lambda session: pairing.load(session, 1)))
        for _ in range(3):
            recorder.note_change()
            await asyncio.sleep(10)
        before = read_identity(env.fs, FOLDER)
        sql.run(lambda session: pairing.pair(session, 1, bytes(16), 1))
        for _ in range(3):
            recorder.note_change()
            await asyncio.sleep(10)
        await recorder.close()
        assert reasons == []
        assert read_identity(env.fs, FOLDER) == before is not None

    run(loop, main())


async def test_database_that_does_not_answer_is_not_taken_for_older(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env, sql, reasons = memory_env(), Sql(), list[str]()
    env.fs.makedirs(f"{FOLDER}/journals")
    recorder = IdentityRecorder(env, sql, FOLDER, 1, "cluster-a", older=reasons.append)
    folder = inspect_folder(env.fs, "/data", FOLDER, 1)
    await recorder.start(folder, sql.run(lambda session: pairing.load(session, 1)))
    sql.left = 0
    recorder.note_change()
    await until(lambda: "trying again" in caplog.text)
    sql.left = 1 << 30
    before = read_identity(env.fs, FOLDER)
    await until(lambda: read_identity(env.fs, FOLDER) != before)
    await recorder.close()
    assert reasons == []


async def forgotten(world: World, name: str) -> int:
    """Delete a topic from the database, like in an older copy of it; return its partition
    number."""
    assert world.database.catalog is not None
    info = world.database.catalog.remove_topic(world.database.catalog.by_name[name].id)
    return info.partitions[0].number


async def test_records_of_unknown_topic_refuse_start() -> None:
    world = await started(2)
    await fill(world.find("t0"), 60)
    await fill(world.find("t1"), 5)
    await world.log.close()
    before = {name: world.fs.open(f"{FOLDER}/journals/{name}").size() for name in journals(world)}
    await forgotten(world, "t0")
    with pytest.raises(IdentityError, match="does not know t0, whose records are in the log"):
        await world.start()
    assert journals(world) == list(before)


def journals(world: World) -> list[str]:
    return world.fs.listdir(f"{FOLDER}/journals")


async def test_records_of_deleted_topic_do_not_refuse_start() -> None:
    world = await started(2)
    await fill(world.find("t0"), 20)
    await fill(world.find("t1"), 20)
    info = world.catalog.by_name["t0"]
    await world.metadata.delete_topics([info.id])  # ended before the journals record it
    await world.crash()
    other = world.catalog.by_name["t1"]
    await world.metadata.delete_topics([other.id])
    world.log.remove_topic(world.catalog.remove_topic(other.id))
    await world.log.commit_log.wait_until_committed()
    world.database.deleted_partitions.discard(other.partitions[0].number)  # the journals record it
    await world.crash()


async def test_number_of_other_topic_refuses_start() -> None:
    world = await started(2)
    await fill(world.find("t1"), 20)
    await world.abandon()
    world.fs.kill()
    before = world.database.catalog
    assert before is not None
    catalog = world.database.catalog = Catalog(before.cluster_id)
    catalog.add_topic(before.by_name["t0"])
    catalog.add_topic(replace(before.by_name["t1"], id=b"another topic id"))
    with pytest.raises(IdentityError, match="does not know t1"):
        await world.start()


def put(source: Path, target: Path) -> None:
    for end in ("", "-wal", "-shm"):
        (target / f"metadata.db{end}").unlink(missing_ok=True)
        if (source / f"metadata.db{end}").exists():
            shutil.copy(source / f"metadata.db{end}", target / f"metadata.db{end}")


@pytest.mark.slow
async def test_missing_old_or_foreign_metadata_is_refused(tmp_path: Path) -> None:
    one, two, copy = tmp_path / "one", tmp_path / "two", tmp_path / "copy"
    copy.mkdir()
    async with running(one):
        put(one, copy)
    for folder in (one, two):
        async with running(folder):
            pass
    newest = tmp_path / "newest"
    newest.mkdir()
    put(one, newest)
    for source, why in [
        (copy, "is older than"),
        (two, "belongs to cluster"),
        (tmp_path / "nowhere", "is missing or empty"),
    ]:
        put(source, one)
        with pytest.raises(IdentityError, match=why):
            async with running(one):
                pass
    assert not (one / "metadata.db").exists(), "what is missing is not created"
    put(newest, one)
    async with running(one):
        pass
    shutil.rmtree(one / "brokers")
    with pytest.raises(IdentityError, match="holds nothing of broker 1"):
        async with running(one):
            pass
