"""The versions of the tables of security, in SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import open_metadata
from kafkawire.security.versions import (
    ACLS,
    SCRAM_CREDENTIALS,
    increment_version,
    version_of,
    versions,
)
from tests.kit.postgres import new_database


async def check(url: str, folder: str) -> None:
    store = open_metadata(url, folder)
    await store.open()
    assert await store.transact(versions) == {}
    assert await store.transact(lambda session: version_of(session, ACLS)) == 0
    assert await store.transact(lambda session: increment_version(session, ACLS)) == 1
    assert await store.transact(lambda session: increment_version(session, ACLS)) == 2
    assert await store.transact(lambda session: increment_version(session, SCRAM_CREDENTIALS)) == 1

    def fails(session: Session) -> None:
        increment_version(session, ACLS)
        raise KeyError

    with pytest.raises(KeyError):
        await store.transact(fails)
    assert await store.transact(versions) == {ACLS: 2, SCRAM_CREDENTIALS: 1}
    await store.close()


async def test_each_change_raises_the_version_of_its_table(tmp_path: Path) -> None:
    await check("", str(tmp_path))


@pytest.mark.real
async def test_each_change_raises_the_version_in_postgres(postgres_url: str) -> None:
    await check(await new_database(postgres_url), "")
