"""Tables for functions of a `Session`, in memory, as a part of `MemoryDatabase`.

What was committed is the image of an SQLite database, so that a copy of a `MemoryDatabase` has it,
and a transaction that fails leaves nothing. An image of the tables takes 0.2 ms to use.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeVar

from kafkawire.metadata.session import Session
from kafkawire.metadata.sqlite import SqliteSession, create_tables

T = TypeVar("T")

USED = (
    "brokers", "broker_heartbeats", "object_logs", "replica_sets", "followers", "data_folders",
    "cluster",
)  # fmt: skip


class MemoryTables:
    """The tables `object_logs`, `replica_sets`, `followers` and `data_folders`, node ids and epochs
    of `brokers` and the version of `cluster`, which each transaction gets from the catalog. A
    statement on another table fails."""

    def __init__(self) -> None:
        self._image = b""

    def run(self, work: Callable[[Session], T], epochs: Mapping[int, int], version: int) -> T:
        """Run one transaction; an exception rolls it back. `epochs`: of brokers, by node id;
        `version`: of the catalog."""
        with closing(sqlite3.connect(":memory:")) as database:
            if self._image:
                database.deserialize(self._image)
            session = SqliteSession(database)
            if not self._image:
                create_tables(session, USED)
            with database:
                session.run("DELETE FROM brokers")
                session.many(
                    "INSERT INTO brokers (node_id, listeners, registered_ms, epoch)"
                    " VALUES (?, '', 0, ?)",
                    list(epochs.items()),
                )
                session.run("DELETE FROM cluster")
                session.run("INSERT INTO cluster VALUES (1, '', ?, 1, 0, 0, 0)", (version,))
                result = work(session)
            self._image = database.serialize()
        return result
