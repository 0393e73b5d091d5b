"""`kafkawire metadata version`: the revision of a database, without changing it.

Covers: kafkawire.cli.cluster.metadata_version.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kafkawire.cli.app import app
from kafkawire.metadata.schema import REVISION, VERSION_TABLE
from kafkawire.metadata.sql import open_metadata
from tests.kit.cli import no_environment, run  # noqa: F401  (a fixture, by name)
from tests.kit.postgres import new_database


@pytest.mark.parametrize(
    ("revision", "state", "code"),
    [(REVISION, "current", 0), ("0001", "older", 0), ("9999", "newer", 1)],
)
@pytest.mark.parametrize("by_url", [False, True])
async def test_revision_and_its_meaning_are_printed(
    revision: str, state: str, code: int, by_url: bool, tmp_path: Path
) -> None:
    metadata = open_metadata("", str(tmp_path))
    await metadata.open()
    await metadata.close()
    file = tmp_path / "metadata.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (revision,))
    before = file.read_bytes()
    words = ["--metadata", f"sqlite:///{file}"] if by_url else ["--data", str(tmp_path)]
    shown = run(app, ["metadata", "version", *words, "--json"])
    assert shown.exit_code == code
    facts = json.loads(shown.stdout)
    assert (facts["revision"], facts["known"], facts["state"]) == (revision, REVISION, state)
    assert file.read_bytes() == before


@pytest.mark.real
async def test_revision_of_postgresql_database(postgres_url: str) -> None:
    url = await new_database(postgres_url)
    metadata = open_metadata(url, "")
    words = ["metadata", "version", "--metadata", url, "--json"]
    before = await asyncio.to_thread(run, app, words)
    assert before.exit_code == 1
    await metadata.open()
    await metadata.close()
    shown = await asyncio.to_thread(run, app, words)
    assert json.loads(shown.stdout)["state"] == "current"
