"""Errors of SQL do not have the values of the statement, such as the keys of users."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from kafkawire.metadata.database import Database, sqlite_transaction
from kafkawire.metadata.store import MetadataError

STATEMENT = text("INSERT INTO no_such_table VALUES (:value)")


def fails(connection: Connection) -> None:
    connection.execute(STATEMENT, {"value": "hush"})


async def test_tracebacks_have_no_values(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    database = Database(f"sqlite:///{path}")
    await database.open()
    with pytest.raises(MetadataError) as caught:
        await database.run(fails)
    await database.close()
    with pytest.raises(MetadataError) as other, sqlite_transaction(path) as connection:
        fails(connection)
    for each in (caught, other):
        said = "".join(traceback.format_exception(each.value))
        assert "no_such_table" in said
        assert "hush" not in said.replace('{"value": "hush"}', "")  # the line of this test
