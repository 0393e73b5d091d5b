"""`kafkawire restore --security`: users, access rules, quotas and tokens after a machine is lost.

Covers: kafkawire.cli.restore.security, kafkawire.cli.shared.confirm, kafkawire.cli.shared.stopped,
kafkawire.restore.security.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from kafkawire.cli.shared import confirm
from kafkawire.metadata import migrate, schema
from kafkawire.metadata.sql import open_metadata
from kafkawire.restore import security
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment, produce, run  # noqa: F401  (a fixture, by name)
from tests.kit.minio import Minio, minio, tier_url  # noqa: F401  (fixtures, by name)
from tests.kit.ports import free_port
from tests.kit.postgres import new_database
from tests.kit.waiting import wait_until

PASSWORD = "pass,=word"
SETTINGS = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "authorizer": "acl",
    "super.users": "User:ANONYMOUS",
    "journal.roll.ms": "100",
    "offsets.topic.num.partitions": "1",
    "remote.fetch.max.wait.ms": "30000",  # `kafkawire consume` ends at an empty answer
    "delegation.token.secret.key": "of this test",
}


def broker_on(folder: Path, tier: str) -> tuple[BrokerProcess, str]:
    """A broker with a listener for log-ins, and its address."""
    address = f"127.0.0.1:{free_port()}"
    secret = {"KAFKAWIRE_SET_DELEGATION_TOKEN_SECRET_KEY": "of this test"}
    settings = {key: value for key, value in SETTINGS.items() if "secret" not in key}
    return BrokerProcess(
        folder,
        settings=settings | {"tier.url": tier},
        listeners=[f"SASL_PLAINTEXT://{address}"],
        environ=secret,
    ), address


def log_in(folder: Path, user: str, address: str, *words: str) -> Typed:
    """Run a command as a user that logs in with the password."""
    file = folder / f"{user}.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={user}\nsasl.password={PASSWORD}\n"
    )
    return Typed(address, "--command-config", str(file), *words)


def make_security(server: str, secret: Path) -> None:
    """Two users, a rule and a quota, with the commands of an operator."""
    secret.write_text(PASSWORD)
    for user in ("alice", "bob"):
        made = Typed(server, "users", "create", user, "--password-file", str(secret),
                     "--mechanism", "SCRAM-SHA-512")  # fmt: skip
        assert (made.code, made.err) == (0, "")
    assert Typed(server, "acls", "add", "alice", "read", "describe", "--topic", "t").code == 0
    assert Typed(server, "quotas", "set", "producer_byte_rate=1MB/s", "--user", "alice").code == 0


def check_security(folder: Path, server: str, address: str) -> None:
    """alice logs in and may read, bob logs in and may not, the quota is there."""
    shown = log_in(folder, "alice", address, "topics", "list", "--json")
    assert [row["topic"] for row in shown.json] == ["t"]
    lines = log_in(folder, "alice", address, "consume", "t", "--json").lines
    assert [line["value"] for line in lines] == ["0", "1", "2"]
    assert log_in(folder, "bob", address, "topics", "list", "--json").json == []
    refused = log_in(folder, "bob", address, "consume", "t")
    assert (refused.code, "TOPIC_AUTHORIZATION_FAILED" in refused.err) == (1, True)
    (quota,) = Typed(server, "quotas", "list", "--json").json
    assert (quota["quota"], quota["value"]) == ("producer_byte_rate", 1e6)


@pytest.mark.real
@pytest.mark.parametrize("storage", ["folder", "s3"])
def test_security_comes_back_after_the_machine_is_lost(
    tmp_path: Path, request: pytest.FixtureRequest, storage: str
) -> None:
    tier = str(tmp_path / "tier")
    if storage == "s3":
        tier = request.getfixturevalue("tier_url")
    lost, new, saved = tmp_path / "lost", tmp_path / "new", tmp_path / "saved"
    broker, address = broker_on(lost, tier)
    with broker:
        server = broker.bootstrap
        lag = ("--config", "tiering.max.lag.ms=5000", "--config", "tiering.min.object.bytes=1")
        assert Typed(server, "topics", "create", "t", *lag).code == 0
        produce(server, "t", {0: 3})
        make_security(server, tmp_path / "secret")
        check_security(tmp_path, server, address)
        assert Typed(server, "backup", str(saved), "--data", str(lost)).code == 0
        wait_until(lambda: _in_bucket(server), "the records are in the bucket")
    shutil.rmtree(lost)

    restored = run_plain("restore", tier, "--data", str(new), "--yes")
    assert f"kafkawire restore BACKUP --security --data {new}" in restored.out
    broker, address = broker_on(new, tier)
    with broker:
        assert log_in(tmp_path, "alice", address, "topics", "list").code == 1
        shown = Typed(broker.bootstrap, "quotas", "list", "--json")
        assert (shown.code, shown.err, shown.out.strip()) == (0, "", "[]"), broker.output

    given = ("restore", "--security", str(saved), "--data", str(new))
    assert run_plain(*given, "--dry-run").code == 0
    assert run_plain(*given, "--yes").code == 0

    broker, address = broker_on(new, tier)
    with broker:
        check_security(tmp_path, broker.bootstrap, address)


def _in_bucket(server: str) -> bool:
    rows = Typed(server, "tier", "status", "--topic", "t", "--json").json["partitions"]
    return [row["commit"] for row in rows] == [3]


def run_plain(*words: str) -> Typed:
    """Run a command that reads no broker."""
    return Typed("", *words)


async def _made(folder: Path, content: security.Content, url: str = "") -> None:
    (folder / "brokers" / "1").mkdir(parents=True)
    store = open_metadata(url, str(folder))
    await store.open()
    try:
        plan = security.compare_security(content, await store.transact(security.load_security))
        await store.transact(
            lambda session: security.enter_security(
                session, security.CopySource(content, None), plan
            )
        )
    finally:
        await store.close()


def data_folder(folder: Path, content: security.Content, url: str = "") -> Path:
    """The folder of a stopped broker with these security tables."""
    asyncio.run(_made(folder, content, url))
    return folder


async def _content(folder: Path, url: str) -> security.Content:
    store = open_metadata(url, str(folder))
    await store.open()
    try:
        return await store.transact(security.load_security)
    finally:
        await store.close()


def content_of(folder: Path, url: str = "") -> security.Content:
    """The security tables of a folder."""
    return asyncio.run(_content(folder, url))


USER, OTHER = ("alice", 2), ("bob", 1)
KEYS, NEWER = (b"salt", b"stored", b"server", 4096), (b"salt2", b"stored2", b"server2", 4096)
QUOTA = {('[["client-id","etl"],["user",null]]', "request_percentage"): (20.0,)}
TOKEN = {("id",): (b"k" * 16, "User:a", "User:a", "[]", 1, 2, 3, b"s", 4096, b"", b"", b"", b"")}
RULE = {(b"d" * 32,): (2, "t", 3, "User:alice", "*", 3, 3)}
EMPTY: dict[str, security.Rows] = {table.name: {} for table in security.TABLES}
SOURCE: dict[str, security.Rows] = {
    "acls": RULE,
    "scram_credentials": {USER: KEYS},
    "client_quotas": QUOTA,
    "delegation_tokens": TOKEN,
}
TARGET: dict[str, security.Rows] = EMPTY | {
    "scram_credentials": {USER: NEWER, OTHER: KEYS},
    "client_quotas": {key: (30.0,) for key in QUOTA},
    "delegation_tokens": TOKEN,
}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The metadata URL of a target; empty for its own file."""
    if request.param == "sqlite":
        yield ""
    else:
        yield asyncio.run(new_database(request.getfixturevalue("postgres_url")))


def restore(source: Path, data: Path, *words: str, url: str = "") -> Typed:
    where = ["--metadata", url] if url else []
    return run_plain("restore", "--security", str(source), "--data", str(data), *where, *words)


def test_different_rows_are_replaced_only_if_that_is_wanted(tmp_path: Path, url: str) -> None:
    source = data_folder(tmp_path / "source", SOURCE)
    target = data_folder(tmp_path / "target", TARGET, url)
    for words in ((), ("--dry-run",), ("--yes",), ("--yes", "--json")):
        refused = restore(source, target, *words, url=url)
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert content_of(target, url) == TARGET
    shown = refused.json if refused.code == 0 else restore(source, target, "--dry-run", url=url).out
    assert not [part for part in ("salt", "stored", "server2") if part in shown]
    document = restore(source, target, "--replace", "--yes", "--json", url=url).json
    assert document["restored"]
    assert [[*row.values()][1:] for row in document["tables"]] == [
        [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0], [1, 0, 0, 0],
    ]  # fmt: skip
    users = {USER: KEYS, OTHER: KEYS}
    assert content_of(target, url) == SOURCE | {"scram_credentials": users}


def test_older_name(tmp_path: Path) -> None:
    source, target = data_folder(tmp_path / "a", SOURCE), data_folder(tmp_path / "b", EMPTY)
    assert run_plain("security", "restore", str(source), "--data", str(target), "--yes").code == 0
    assert content_of(target) == SOURCE


def test_answer_at_the_terminal_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = data_folder(tmp_path / "a", SOURCE), data_folder(tmp_path / "b", EMPTY)

    class Terminal:
        answer = "\n"

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.answer

    class Sys:
        stdin = Terminal()

    monkeypatch.setattr(confirm, "sys", Sys())
    assert "not confirmed" in restore(source, target).err
    assert content_of(target) == EMPTY
    monkeypatch.setattr(Terminal, "answer", "y\n")
    assert restore(source / "metadata.db", target).code == 0
    assert content_of(target) == SOURCE


KILLED = """
import os, sys
from kafkawire.cli.app import app
from kafkawire.restore import security

insert, written = security.insert, []

def kill(*given):
    insert(*given)
    written.append(given)
    if len(written) > int(sys.argv[1]):
        os._exit(77)

security.insert = kill
app(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("table", range(len(security.TABLES)))
def test_killed_process_has_restored_nothing(tmp_path: Path, table: int) -> None:
    """The process ends after it has written to the first tables."""
    source, target = data_folder(tmp_path / "a", SOURCE), data_folder(tmp_path / "b", EMPTY)
    words = ["security", "restore", str(source), "--data", str(target), "--yes"]
    command = [sys.executable, "-c", KILLED, str(table), *words]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 77
    assert content_of(target) == EMPTY
    assert restore(source, target, "--yes").code == 0
    assert content_of(target) == SOURCE


def test_source_of_an_older_revision_is_migrated(tmp_path: Path) -> None:
    source, target = tmp_path / "old", data_folder(tmp_path / "b", EMPTY)
    source.mkdir()
    file = source / "metadata.db"
    with create_engine(f"sqlite:///{file}").begin() as connection:
        migrate.upgrade(connection, "0006")  # without tokens
        connection.exec_driver_sql("INSERT INTO cluster VALUES (1, 'c', 1, 1, 1, 1)")
        connection.exec_driver_sql("INSERT INTO client_quotas VALUES ('[[\"user\",null]]', 'k', 1)")
    before = file.read_bytes()
    assert "1 row restored" in restore(source, target, "--yes").out
    assert file.read_bytes() == before, "a source is only read"
    assert content_of(target)["client_quotas"] == {('[["user",null]]', "k"): (1.0,)}
    older = restore(target, source, "--yes")
    assert (older.code, "is not a data folder" in older.err) == (1, True)
    (source / "brokers" / "1").mkdir(parents=True)
    older = restore(target, source, "--yes")
    assert (older.code, "start a broker of this version once" in older.err) == (1, True)


@pytest.mark.parametrize(
    "sql",
    [
        f"UPDATE {schema.VERSION_TABLE} SET version_num = '0999'",
        f"UPDATE {schema.VERSION_TABLE} SET version_num = 'spam'",
        f"DROP TABLE {schema.VERSION_TABLE}",
    ],
)
def test_unknown_source_is_refused(tmp_path: Path, sql: str) -> None:
    source, target = data_folder(tmp_path / "a", SOURCE), data_folder(tmp_path / "b", EMPTY)
    with closing(sqlite3.connect(source / "metadata.db")) as connection:
        connection.execute(sql)
        connection.commit()
    refused = restore(source, target, "--yes")
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert content_of(target) == EMPTY
