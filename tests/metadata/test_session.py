"""Statements of many rows, and queries that return them in portions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.metadata.session import PORTION, ROWS_INSERTED, Row, Session, insert
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import MetadataError
from tests.kit.postgres import new_database

COUNT = ROWS_INSERTED + 17
HEAD = "INSERT INTO client_quotas (entity, key, value)"


async def check(url: str, folder: str) -> None:
    store = open_metadata(url, folder)
    await store.open()
    made: list[Row] = [(str(number), "a key", float(number)) for number in range(COUNT)]

    def fill(session: Session) -> None:
        insert(session, HEAD, made)
        session.many(f"{HEAD} VALUES (?, ?, ?)", [(e, "another", value) for e, _, value in made])

    def read(session: Session) -> tuple[list[Row], list[list[Row]]]:
        query = "SELECT entity, key, value FROM client_quotas"
        return session.rows(query), session.portions(query)

    await store.transact(fill)
    rows, portions = await store.transact(read)
    assert sorted(rows) == sorted(row for portion in portions for row in portion)
    assert len(rows) == 2 * COUNT
    assert {type(row) for portion in portions for row in portion} == {tuple}
    assert len(portions) == 2 * COUNT // PORTION + 1
    one = "SELECT value FROM client_quotas WHERE entity = ? AND key = ?"
    assert await store.transact(lambda session: session.portions(one, ("7", "a key"))) == [[(7.0,)]]
    assert await store.transact(lambda session: session.portions(one, ("7", "none"))) == []
    with pytest.raises(MetadataError, match="no_table"):
        await store.transact(lambda session: session.portions("SELECT 1 FROM no_table"))
    await store.close()


async def test_many_rows(tmp_path: Path) -> None:
    await check("", str(tmp_path))


@pytest.mark.real
async def test_many_rows_in_postgres(postgres_url: str) -> None:
    await check(await new_database(postgres_url), "")
