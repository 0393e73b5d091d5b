"""Tables for functions of a `Session`, in memory, as a part of `MemoryDatabase`.

What was committed is the image of an SQLite database, so that a copy of a `MemoryDatabase` has it,
and a transaction that fails leaves nothing. An image of the tables takes 0.2 ms to use.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeVar

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from kafkawire.metadata import tables
from kafkawire.metadata.session import Session

T = TypeVar("T")


class MemoryTables:
    """The tables `object_logs`, `replica_sets`, `followers` and `data_folders`, and node ids and
    epochs of `brokers`, which each transaction gets from the catalog. A statement on another table
    fails."""

    def __init__(self) -> None:
        self._image = b""

    def run(self, work: Callable[[Session], T], epochs: Mapping[int, int]) -> T:
        """Run one transaction; an exception rolls it back. `epochs`: of brokers, by node id."""
        with closing(sqlite3.connect(":memory:")) as database:
            if self._image:
                database.deserialize(self._image)
            engine = create_engine("sqlite://", creator=lambda: database, poolclass=StaticPool)
            with engine.begin() as connection:
                if not self._image:
                    used = [
                        tables.brokers,
                        tables.broker_heartbeats,
                        tables.object_logs,
                        tables.replica_sets,
                        tables.followers,
                        tables.data_folders,
                    ]
                    tables.metadata.create_all(connection, tables=used)
                session = Session(connection)
                session.run("DELETE FROM brokers")
                session.many(
                    "INSERT INTO brokers (node_id, listeners, registered_ms, epoch)"
                    " VALUES (?, '', 0, ?)",
                    list(epochs.items()),
                )
                result = work(session)
            self._image = database.serialize()
        return result
