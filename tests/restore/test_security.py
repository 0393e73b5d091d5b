"""Copies of the security tables: what is compared, added, replaced and refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafkawire.metadata import tables
from kafkawire.metadata.session import Row, Session
from kafkawire.metadata.sql import SqlMetadata, open_metadata
from kafkawire.restore import security
from kafkawire.restore.security import (
    Comparison,
    Content,
    CopyRefused,
    CopySource,
    compare_security,
    enter_security,
    load_security,
    load_source,
)
from kafkawire.security import versions
from kafkawire.security.sasl.credentials import Credentials
from tests.kit.postgres import new_database
from tests.kit.waiting import no_wait

VALUES = {"digest": b"d" * 32, "entity": '[["user","a"]]', "renewers": "[]"}


def row(table: security.SecurityTable, **changes: Any) -> tuple[Row, Row]:
    """A key and the other columns of a row."""
    columns = tables.metadata.tables[table.name].columns
    made = dict(changes)
    for name in (*table.key, *table.columns):
        of_type: Any = {str: "text", bytes: b"bytes", int: 7, float: 1.5}
        made.setdefault(name, VALUES.get(name, of_type[columns[name].type.python_type]))
    return tuple(made[name] for name in table.key), tuple(made[name] for name in table.columns)


def content(**changes: Mapping[Row, Row]) -> Content:
    """One row in each table, except for `changes`."""
    return {table.name: dict([row(table)]) for table in security.TABLES} | changes


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlMetadata]:
    url = ""
    if request.param == "postgres":
        url = await new_database(request.getfixturevalue("postgres_url"))
    metadata = open_metadata(url, str(tmp_path))
    await metadata.open()
    yield metadata
    await metadata.close()


def summary(found: list[Comparison]) -> list[tuple[int, int, int, int]]:
    return [
        (each.same, len(each.added), len(each.different), each.only_in_target) for each in found
    ]


def test_all_security_tables_with_all_columns_are_copied() -> None:
    described = tables.metadata.tables
    for table in security.TABLES:
        keys = [column.name for column in described[table.name].primary_key.columns]
        names = [each.name for each in described[table.name].columns if each.computed is None]
        assert list(table.key) == keys
        assert list(table.columns) == [name for name in names if name not in keys]
    versioned = {versions.ACLS, versions.SCRAM_CREDENTIALS, versions.CLIENT_QUOTAS,
                 versions.DELEGATION_TOKENS}  # fmt: skip
    assert {table.name for table in security.TABLES} == versioned


async def test_copy_adds_then_has_nothing_to_do(store: SqlMetadata) -> None:
    source = content()
    plan = compare_security(source, await store.transact(load_security))
    assert summary(plan) == [(0, 1, 0, 0)] * 4
    await store.transact(lambda session: enter_security(session, CopySource(source, None), plan))
    assert await store.transact(load_security) == source
    counted = await store.transact(versions.versions)
    assert counted == {table.name: 1 for table in security.TABLES}
    again = compare_security(source, await store.transact(load_security))
    assert summary(again) == [(1, 0, 0, 0)] * 4
    await store.transact(lambda session: enter_security(session, CopySource(source, None), again))
    assert await store.transact(versions.versions) == counted, "nothing was changed"


async def test_different_rows_are_replaced_and_others_stay(store: SqlMetadata) -> None:
    users = security.TABLES[1]
    mine = dict([row(users), row(users, user_name="mine")])
    before = content(scram_credentials=mine)
    empty = await store.transact(load_security)
    await store.transact(
        lambda session: enter_security(
            session, CopySource(before, None), compare_security(before, empty)
        )
    )
    theirs = dict([row(users, salt=b"other"), row(users, user_name="theirs")])
    source = content(scram_credentials=theirs)
    plan = compare_security(source, before)
    assert summary(plan) == [(1, 0, 0, 0), (0, 1, 1, 1), (1, 0, 0, 0), (1, 0, 0, 0)]
    await store.transact(lambda session: enter_security(session, CopySource(source, None), plan))
    assert await store.transact(load_security) == content(scram_credentials=mine | theirs)


async def test_change_since_comparison_is_refused(store: SqlMetadata) -> None:
    source = content()
    plan = compare_security(source, await store.transact(load_security))
    await store.transact(
        lambda session: session.run("INSERT INTO client_quotas VALUES ('[]', 'k', 1.0)")
    )
    with pytest.raises(CopyRefused, match="changed meanwhile"):
        await store.transact(
            lambda session: enter_security(session, CopySource(source, None), plan)
        )
    assert not (await store.transact(load_security))[versions.ACLS]
    assert await store.transact(versions.versions) == {}


async def test_failed_copy_changes_nothing(store: SqlMetadata) -> None:
    source = content()
    empty = await store.transact(load_security)
    plan = compare_security(source, empty)

    def fail(session: Session) -> None:
        enter_security(session, CopySource(source, None), plan)
        raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError):
        await store.transact(fail)
    assert await store.transact(load_security) == empty
    assert await store.transact(versions.versions) == {}


def test_limit_of_a_table_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = tuple(table._replace(max_rows=1) for table in security.TABLES)
    monkeypatch.setattr(security, "TABLES", limited)
    quotas = limited[2]
    here = content()
    assert summary(compare_security(here, here)) == [(1, 0, 0, 0)] * 4
    with pytest.raises(CopyRefused, match="there would be 2 quotas"):
        compare_security(content(client_quotas=dict([row(quotas, key="other")])), here)


async def test_secret_of_unknown_users_comes_with_the_first_users(store: SqlMetadata) -> None:
    """Salts of unknown users must stay as they were, as those of users do."""
    one, other = Credentials(store, lambda _: b"own", no_wait), content()
    await one.load()
    assert not (await store.transact(load_security))[versions.SCRAM_CREDENTIALS], (
        "the secret is no user"
    )
    for secret, expected in ((b"first", b"first"), (b"second", b"first")):
        plan = compare_security(other, await store.transact(load_security))
        await store.transact(
            partial(enter_security, source=CopySource(other, secret), expected=plan)
        )
        assert (await store.transact(load_source)).secret == expected
        users = dict([row(security.TABLES[1], user_name="next")])
        other = content(scram_credentials=users)
