"""Errors of SQL do not have the values of the statement, such as the keys of users."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from kafkawire.metadata.database import Database
from kafkawire.metadata.session import Session
from kafkawire.metadata.sqlite import sqlite_transaction
from kafkawire.metadata.store import MetadataError


def fails(session: Session) -> None:
    session.run("INSERT INTO no_such_table VALUES (?)", ("hush",))


async def test_tracebacks_have_no_values(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    database = Database(f"sqlite:///{path}")
    await database.open()
    with pytest.raises(MetadataError) as caught:
        await database.run(fails)
    await database.close()
    with pytest.raises(MetadataError) as other, sqlite_transaction(path) as session:
        fails(session)
    for each in (caught, other):
        said = "".join(traceback.format_exception(each.value))
        assert "no_such_table" in said
        assert "hush" not in said.replace('("hush",)', "")  # the line of this test
