"""Migrates the tables of an older database to the current revision, with Alembic.

Imported only for an old database, because importing Alembic is slow. Runs inside the transaction of
the caller (`database.Database.open`), so a failed migration leaves all as it was. The steps are the
files in migrations/versions, one a revision, applied in the order of their numbers; Alembic's
command line and env.py are not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from kafkawire.metadata import schema

STEPS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, revision: str = "head", steps: Path = STEPS) -> None:
    """Apply the missing steps up to `revision`; `steps`: a folder with versions."""
    scripts = ScriptDirectory(str(steps))

    def missing(stored: Any, _context: MigrationContext) -> Iterable[Any]:
        return scripts._upgrade_revs(revision, stored)

    context = MigrationContext.configure(
        connection, opts={"version_table": schema.VERSION_TABLE, "fn": missing}
    )
    with Operations.context(context):
        context.run_migrations()
