"""A check of every page and every row of an SQLite file while the broker serves.

SQLite verifies a page when a statement reads it, so damage to pages that no statement reads goes
unnoticed until the next start or a rare request needs them. `PRAGMA quick_check` reads all of them,
but not whether indexes agree with tables: `kafkawire fsck` checks that too. Then each row is
compared with its checksum. Blocking: call `run` on a thread. Used by
kafkawire.server.metadata_check.
"""

from __future__ import annotations

import contextlib
import sqlite3

from kafkawire.metadata import damage
from kafkawire.metadata.sqlite_device import connect_to_check
from kafkawire.metadata.store import DamagedMetadata, failure_of

STEPS_BETWEEN_CHECKS = 10_000
"""Instructions of SQLite's virtual machine, some tenths of a millisecond, between checks for
`stop`, in case `interrupt` was called before the statement began."""


class PageCheck:
    """One check of one file, on a separate read-only connection, which in WAL mode blocks no
    writer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._stopped = False

    def run(self) -> bool:
        """Read every page and row; return False if it was stopped. Blocking.

        Raises DamagedMetadata, and MetadataError if the file cannot be read (disk error, busy).
        """
        try:
            with contextlib.closing(connect_to_check(self._path)) as connection:
                connection.set_progress_handler(lambda: self._stopped, STEPS_BETWEEN_CHECKS)
                self._connection = connection
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found == "ok" and not self._stopped:
                    damage.check(self._path, connection)
        except sqlite3.Error as failure:
            if self._stopped:
                return False
            raise failure_of(self._path, failure) from failure
        if self._stopped:  # an interrupted check has no result
            return False
        if found != "ok":
            raise DamagedMetadata(self._path, " ".join(found.split()))
        return True

    def stop(self) -> None:
        """Make `run` return soon. Thread-safe; no effect before and after it."""
        self._stopped = True
        if self._connection is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # already closed
                self._connection.interrupt()
