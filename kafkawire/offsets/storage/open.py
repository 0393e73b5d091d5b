"""Open the `SegmentCatalog` of the setting `offset.storage`, after checking that it is the right
one."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable

from kafkawire.metadata.pairing import SeenInSql
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import DamagedMetadata, MetadataError, Transactions
from kafkawire.offsets.catalog.port import SegmentCatalog
from kafkawire.offsets.catalog.sql.statements import LeaderTerm

SQL, ROCKSDB, MEMORY = "sql", "rocksdb", "memory"
BUILT_IN = (SQL, ROCKSDB, MEMORY)
_PLUGGED = re.compile(r"offsets-([a-z0-9][a-z0-9_-]*)")
RESTORING = ".restoring"
"""Suffix of the folder in which `restore --from-log` builds the offsets for RocksDB."""


def open_storage(
    kind: str,
    transactions: Transactions,
    folder: str,
    node_id: int,
    now_ms: Callable[[], int],
    leader_of: Callable[[int], int | None],
    suffix: str = "",
    term: LeaderTerm | None = None,
    seen: SeenInSql | None = None,
) -> SegmentCatalog:
    """Open the storage of a broker. `sql` uses the metadata database; `rocksdb` the folder
    `<folder>/offsets<suffix>`; `memory` stores nothing; any other is that of a plug-in, with the
    folder `<folder>/offsets-<kind>`. Raises PluginError if it cannot be loaded. `leader_of`
    returns the leader of a partition, `term` in which term this broker leads; `seen`: what a
    running broker has seen in SQL, which every change is compared with."""
    if kind == SQL:
        from kafkawire.offsets.catalog.sql.storage import SqlStorage

        return SqlStorage(transactions, node_id, now_ms, term, seen)
    if kind == ROCKSDB:
        from kafkawire.offsets.catalog.kv.rocksdb import RocksStorage

        return RocksStorage(rocks_folder(folder) + suffix, node_id, now_ms, leader_of)
    if kind != MEMORY:
        return _open_plugged(kind, folder, node_id, now_ms, leader_of)
    from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage

    return MemoryStorage(MemoryRows(), node_id, now_ms, leader_of)


def _open_plugged(
    kind: str,
    folder: str,
    node_id: int,
    now_ms: Callable[[], int],
    leader_of: Callable[[int], int | None],
) -> SegmentCatalog:
    from kafkawire.metadata.sqlite import make_folder_of
    from kafkawire.offsets.catalog.kv.threaded import PluggedStore, ThreadedStorage
    from kafkawire.plugins import OFFSET_STORAGES, call_plugin, describe_plugin, load_plugin

    plugin, what = load_plugin(OFFSET_STORAGES, kind), describe_plugin(OFFSET_STORAGES, kind)
    place = f"{folder}/offsets-{kind}"
    # Also for a store elsewhere: a start with another offset.storage finds the folder.
    make_folder_of(f"{place}/store")
    store = call_plugin(what, lambda: plugin(place, node_id))
    return ThreadedStorage(PluggedStore(store, what), what, node_id, now_ms, leader_of)


def is_storage_name(kind: str) -> bool:
    """Return whether a plug-in may have this name, which is part of a folder's."""
    return _PLUGGED.fullmatch(f"offsets-{kind}") is not None


def kind_in(folder: str) -> str:
    """Return the storage whose folder is in a broker's folder; SQL if there is none."""
    return next(iter(_kinds_in(folder)), SQL)


def _kinds_in(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    plugged = [found[1] for name in names if (found := _PLUGGED.fullmatch(name))]
    return ([ROCKSDB] if holds_rocks(folder) else []) + plugged


async def check_storage(kind: str, transactions: Transactions, folder: str, node_id: int) -> None:
    """Raise MetadataError if another storage than `kind` has offsets of this broker, or if a
    restore of them is incomplete."""
    if is_restoring(folder):
        raise MetadataError(
            f"{rocks_folder(folder)}{RESTORING} is left of a restore that was interrupted: run "
            "`kafkawire restore --from-log` again"
        )
    others = [each for each in _kinds_in(folder) if each != kind]
    if others:
        held = others[0]
    elif kind != SQL and await transactions.transact(lambda session: holds_sql(session, node_id)):
        held = SQL
    else:
        return
    # With another storage than before the broker would assign offsets again, and not find its
    # segments.
    command = f" convert them with kafkawire offsets convert --to {kind},"
    convert = command if {kind, held} <= {SQL, ROCKSDB} else ""
    raise MetadataError(
        f"offset.storage={kind}: the offsets of broker {node_id} are in {held}: "
        f"start with offset.storage={held},{convert} or with an empty data folder"
    )


def rocks_folder(folder: str) -> str:
    return f"{folder}/offsets"


def holds_rocks(folder: str) -> bool:
    """Return whether RocksDB has the broker's offsets in this folder, or will after a restore."""
    return os.path.exists(rocks_folder(folder)) or is_restoring(folder)


def is_restoring(folder: str) -> bool:
    """Return whether a restore of RocksDB's folder is incomplete."""
    return os.path.exists(rocks_folder(folder) + RESTORING)


def rocks_damaged(folder: str) -> bool:
    """Return whether RocksDB has the offsets of the broker in this folder but cannot read all of
    them. Raises MetadataError if that cannot be determined, NewerFormatError."""
    from kafkawire.offsets.catalog.kv.rocksdb import RocksStore
    from kafkawire.offsets.catalog.kv.transaction_count import count_of

    place = rocks_folder(folder)
    if is_restoring(folder) or not os.path.exists(place):
        return is_restoring(folder) or count_of(place) > 0
    store = RocksStore(place, read_only=True)
    try:
        store.check()
    except DamagedMetadata:
        return True
    finally:
        store.close()
    return False


def holds_sql(session: Session, node_id: int) -> bool:
    """Return whether SQL has rows of the partitions of this broker."""
    checkpoint = (
        "SELECT 1 FROM partition_offset_checkpoints c JOIN partitions p"
        " ON p.number = c.partition_number JOIN lead_groups g ON g.id = p.lead_group"
        f" WHERE g.leader = {node_id:d} LIMIT 1"
    )
    segment = f"SELECT 1 FROM segments WHERE node_id = {node_id:d} LIMIT 1"
    return bool(session.rows(checkpoint) or session.rows(segment))
