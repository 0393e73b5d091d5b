"""Which `OffsetStorage` a broker uses: the setting `offset.storage`."""

from __future__ import annotations

from collections.abc import Callable

from kafkawire.metadata.store import Transactions
from offsets.storage import OffsetStorage

SQL, ROCKSDB, MEMORY = "sql", "rocksdb", "memory"


def open_storage(
    kind: str,
    transactions: Transactions,
    folder: str,
    node_id: int,
    now_ms: Callable[[], int],
    leader_of: Callable[[int], int | None],
) -> OffsetStorage:
    """The storage of a broker. `sql` lies in the database of the metadata; `rocksdb` in
    `<folder>/offsets`; `memory` nowhere."""
    if kind == SQL:
        from offsets.sql_storage import SqlStorage

        return SqlStorage(transactions, node_id, now_ms)
    if kind == ROCKSDB:
        from offsets.rocks_storage import RocksStorage

        return RocksStorage(f"{folder}/offsets", node_id, now_ms, leader_of)
    assert kind == MEMORY, kind
    from offsets.memory_storage import MemoryRows, MemoryStorage

    return MemoryStorage(MemoryRows(), node_id, now_ms, leader_of)
