"""Which `SegmentCatalog` a broker uses: the setting `offset.storage`, and that it is the right one.

With another storage than the one that holds its offsets a broker would give offsets again and lose
sight of its segments, so it refuses to start.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable

from kafkawire.metadata.session import Session
from kafkawire.metadata.store import MetadataError, Transactions
from kafkawire.offsets.catalog.port import SegmentCatalog

SQL, ROCKSDB, MEMORY = "sql", "rocksdb", "memory"


def open_storage(
    kind: str,
    transactions: Transactions,
    folder: str,
    node_id: int,
    now_ms: Callable[[], int],
    leader_of: Callable[[int], int | None],
) -> SegmentCatalog:
    """The storage of a broker. `sql` lies in the database of the metadata; `rocksdb` in
    `<folder>/offsets`; `memory` nowhere."""
    if kind == SQL:
        from kafkawire.offsets.catalog.sql.storage import SqlStorage

        return SqlStorage(transactions, node_id, now_ms)
    if kind == ROCKSDB:
        from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage

        return RocksStorage(rocks_folder(folder), node_id, now_ms, leader_of)
    assert kind == MEMORY, kind
    from kafkawire.offsets.catalog.memory import MemoryRows, MemoryStorage

    return MemoryStorage(MemoryRows(), node_id, now_ms, leader_of)


async def check_storage(kind: str, transactions: Transactions, folder: str, node_id: int) -> None:
    """MetadataError if another storage than `kind` holds the offsets of this broker."""
    if kind != ROCKSDB and holds_rocks(folder):
        held = ROCKSDB
    elif kind != SQL and await transactions.transact(lambda session: holds_sql(session, node_id)):
        held = SQL
    else:
        return
    convert = "" if kind == MEMORY else f" convert them with kafkawire offsets convert --to {kind},"
    raise MetadataError(
        f"offset.storage={kind}: the offsets of broker {node_id} are in {held}: "
        f"start with offset.storage={held},{convert} or with an empty data folder"
    )


def rocks_folder(folder: str) -> str:
    """Where RocksDB keeps the offsets of the broker in this folder."""
    return f"{folder}/offsets"


def holds_rocks(folder: str) -> bool:
    """Whether RocksDB keeps the offsets of the broker in this folder."""
    return os.path.exists(rocks_folder(folder))


def holds_sql(session: Session, node_id: int) -> bool:
    """Whether SQL has anything on the partitions of this broker."""
    checkpoint = (
        "SELECT 1 FROM partition_offset_checkpoints c JOIN partitions p"
        f" ON p.number = c.partition_number WHERE p.leader = {node_id:d} LIMIT 1"
    )
    segment = f"SELECT 1 FROM segments WHERE node_id = {node_id:d} LIMIT 1"
    return bool(session.rows(checkpoint) or session.rows(segment))
