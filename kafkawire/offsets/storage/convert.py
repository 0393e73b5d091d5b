"""Move all offset rows of a stopped broker from SQL to RocksDB or back.

Rows of the types in `kafkawire.offsets.catalog.port` are read from one storage and written to the
other unchanged. Each side is complete or absent: SQL is written in one transaction, RocksDB in a
folder that is renamed into place. While both exist, both are complete, so an interrupted conversion
is finished by running it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from kafkawire.metadata.checkpoint import PartitionCheckpoint, unpack_all
from kafkawire.metadata.schema import ORPHANED
from kafkawire.metadata.session import Row, Session, insert
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.layout import Totals
from kafkawire.offsets.catalog.kv.store import KeyValueStore, Writes
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    LIVE,
    NEVER,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    TierRow,
)
from kafkawire.offsets.catalog.sql import statements
from kafkawire.offsets.catalog.sql.objects import OBJECT, objects_where

PAIRS_AT_ONCE = 10_000
"""Pairs per write to RocksDB: a few megabytes."""


class ConversionError(Exception):
    """Why nothing was converted, in one sentence."""


@dataclass(slots=True)
class StoredOffsets:
    """All that a storage has of one broker. `offsets`: (partition, dispatch, commit, time);
    `next_id`: of the next segment."""

    log_position: int = 0
    next_id: int = 1
    checkpoints: list[tuple[PartitionCheckpoint, int]] = field(default_factory=list)
    totals: dict[int, Totals] = field(default_factory=dict)
    mappings: list[SegmentRange] = field(default_factory=list)
    segments: list[SegmentRow] = field(default_factory=list)
    objects: list[ObjectRow] = field(default_factory=list)
    offsets: list[tuple[int, int, int, int]] = field(default_factory=list)
    tiers: list[TierRow] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {
            "checkpoints": len(self.checkpoints),
            "mappings": len(self.mappings),
            "segments": len(self.segments),
            "objects": len(self.objects),
            "tiers": len(self.tiers),
        }


def _of_led(table: str, columns: str, node_id: int) -> str:
    return (
        f"SELECT {columns} FROM {table} JOIN partitions p ON p.number = {table}.partition_number"
        " JOIN lead_groups g ON g.id = p.lead_group"
        f" WHERE g.leader = {node_id:d} ORDER BY {table}.partition_number"
    )


def read_sql(session: Session, node_id: int) -> StoredOffsets:
    stored = StoredOffsets(next_id=_next_id(session))
    for (log_position,) in session.rows(
        f"SELECT place FROM checkpoints WHERE node_id = {node_id:d}"
    ):
        stored.log_position = log_position
    columns = "partition_number, checkpoint_offset, log_start, leader_epochs, producers"
    rows = session.rows(_of_led("partition_offset_checkpoints", f"{columns}, updated_at", node_id))
    states = unpack_all([row[:5] for row in rows])
    stored.checkpoints = [(state, row[5]) for state, row in zip(states, rows, strict=True)]
    columns = "partition_number, record_count, total_size, created_at, last_activity_at"
    for number, *totals in session.rows(_of_led("partition_metadata", columns, node_id)):
        stored.totals[number] = Totals(*totals)
    mappings = statements.mappings_where(
        session, f"{statements.led_by(node_id)} ORDER BY partition_number, base_offset"
    )
    # The mark of deleted topics is one of SQL: a key-value store asks for the leader.
    stored.mappings = [m._replace(due_ms=NEVER) if m.due_ms < 0 else m for m in mappings]
    stored.segments = statements.segments_where(session, f"node_id = {node_id:d}")
    stored.objects = objects_where(session, f"node_id = {node_id:d} ORDER BY uuid", [])
    columns = "partition_number, dispatch_offset, commit_offset, updated_at"
    found = session.rows(_of_led("tiering_offsets", columns, node_id))
    stored.offsets = [(number, dispatch, commit, at) for number, dispatch, commit, at in found]
    tiers = session.rows(
        f"SELECT id, url, state, created_ms, {node_id:d} FROM tiers"
        f" WHERE {_own_tiers(node_id)} ORDER BY id"
    )
    stored.tiers = [TierRow(*row) for row in tiers]
    return stored


def _next_id(session: Session) -> int:
    # Kept without rows, because ids are never used again.
    if session.dialect == "postgresql":
        query = "SELECT nextval(pg_get_serial_sequence('segments', 'id'))"
        return int(session.rows(query)[0][0])
    rows = session.rows("SELECT seq FROM sqlite_sequence WHERE name = 'segments'")
    return int(rows[0][0]) + 1 if rows else 1


def write_sql(session: Session, node_id: int, stored: StoredOffsets, now_ms: int) -> None:
    """Write all rows into SQL, which must have none of this broker. Raises ConversionError."""
    living = _partitions(session, node_id)
    _check(session, stored, living)
    for state, at in stored.checkpoints:
        statements.save_states(session, [state], at)
    insert(
        session,
        "INSERT INTO partition_metadata"
        " (partition_number, record_count, total_size, created_at, last_activity_at)",
        [(n, t.records, t.size_bytes, t.created_ms, t.last_activity_ms)
         for n, t in stored.totals.items()],
    )  # fmt: skip
    insert(
        session,
        f"INSERT INTO segments ({statements.SEGMENT})",
        [_segment(s) for s in stored.segments],
    )
    # As the deletion of a topic marks its mappings.
    deleted = [m._replace(due_ms=m.due_ms if living[m.number] else ORPHANED)
               for m in stored.mappings]  # fmt: skip
    if not statements.add_mappings(session, deleted, now_ms):
        raise ConversionError("two mappings cover the same offsets: run kafkawire fsck")
    insert(session, f"INSERT INTO remote_objects ({OBJECT})", [_object(o) for o in stored.objects])
    insert(
        session,
        "INSERT INTO tiering_offsets"
        " (partition_number, dispatch_offset, commit_offset, updated_at)",
        stored.offsets,
    )
    insert(
        session,
        "INSERT INTO tiers (id, url, state, created_ms, node_id)",
        [(tier.id, tier.url, tier.state, tier.created_ms, node_id) for tier in stored.tiers],
    )
    insert(session, "INSERT INTO checkpoints (node_id, place, saved_ms)",
           [(node_id, stored.log_position, now_ms)])  # fmt: skip
    _set_next_id(session, stored.next_id)


def _partitions(session: Session, node_id: int) -> dict[int, bool]:
    """Return the partitions of a broker, and whether their topic exists."""
    rows = session.rows(
        "SELECT p.number, t.deleted_ms FROM partitions p JOIN topics t ON t.id = p.topic_id"
        f" JOIN lead_groups g ON g.id = p.lead_group WHERE g.leader = {node_id:d}"
    )
    return {number: deleted_ms is None for number, deleted_ms in rows}


def _check(session: Session, stored: StoredOffsets, living: dict[int, bool]) -> None:
    numbers = {row.number for row, _ in stored.checkpoints}
    numbers.update(stored.totals, (row.number for row in stored.mappings))
    numbers.update(row[0] for row in stored.offsets)
    unknown = numbers - living.keys()
    if unknown:
        raise ConversionError(
            f"{len(unknown)} partitions of deleted topics are stored: start the broker with the "
            "storage it has, until it has removed them"
        )
    taken = {row[0] for row in session.rows("SELECT id FROM segments")}
    if taken & {row.id for row in stored.segments}:
        raise ConversionError(
            "other brokers have segments with the same numbers in this database: it cannot take "
            "the offsets of this one"
        )


def _segment(row: SegmentRow) -> Row:
    return (
        row.uuid, row.node_id, row.created_ms, row.id, row.state, row.size_bytes, row.live_bytes,
        row.generation, row.retention_class, row.max_timestamp, row.delete_after_ms,
        int(row.local), row.object or None, row.tier,
    )  # fmt: skip


def _object(row: ObjectRow) -> Row:
    return (
        row.uuid, row.segment_id, row.node_id, row.tier, row.state, row.size_bytes,
        row.created_ms, row.delete_after_ms, row.ranges,
    )  # fmt: skip


def _set_next_id(session: Session, next_id: int) -> None:
    # Never lower: other brokers have segments in this table, too.
    if session.dialect == "postgresql":
        sequence = "pg_get_serial_sequence('segments', 'id')"
        session.rows(f"SELECT setval({sequence}, greatest(nextval({sequence}), {next_id:d}))")
        return
    session.run("DELETE FROM sqlite_sequence WHERE name = 'segments' AND seq < ?", (next_id - 1,))
    session.run(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'segments', ? WHERE NOT EXISTS"
        " (SELECT 1 FROM sqlite_sequence WHERE name = 'segments')",
        (next_id - 1,),
    )


def _own_tiers(node_id: int) -> str:
    """Return the condition on tiers that no other broker writes."""
    return f"coalesce(node_id, {node_id:d}) = {node_id:d}"


def forget_sql(session: Session, node_id: int) -> None:
    """Delete all rows of a broker from SQL, including tiers, which belong to the storage."""
    ours = (
        "partition_number IN (SELECT p.number FROM partitions p"
        f" JOIN lead_groups g ON g.id = p.lead_group WHERE g.leader = {node_id:d})"
    )
    for table in ("offset_mappings", "partition_metadata", "partition_offset_checkpoints",
                  "tiering_offsets"):  # fmt: skip
        session.run(f"DELETE FROM {table} WHERE {ours}")
    for table in ("segments", "remote_objects", "checkpoints"):
        session.run(f"DELETE FROM {table} WHERE node_id = {node_id:d}")
    if not session.rows("SELECT 1 FROM remote_objects LIMIT 1"):
        session.run(f"DELETE FROM tiers WHERE {_own_tiers(node_id)}")


def read_kv(store: KeyValueStore, node_id: int) -> StoredOffsets:
    """Read the offsets in a key-value store. Raises FormatError."""
    log_position, next_id = store.get([layout.log_position_key(node_id), layout.NEXT_ID_KEY])
    stored = StoredOffsets(layout.unpack_number(log_position), layout.unpack_number(next_id) or 1)
    for key, value in store.scan(b"p", b"q"):
        number, kind = layout.partition_of(key)
        if kind == layout.CHECKPOINT:
            stored.checkpoints.append(layout.unpack_checkpoint(number, value))
        elif kind == layout.TOTALS:
            stored.totals[number] = layout.unpack_totals(value)
        else:
            stored.mappings.append(layout.unpack_mapping(key, value))
    stored.segments = [layout.unpack_segment(*pair) for pair in store.scan(b"s", b"t")]
    stored.objects = [layout.unpack_object(*pair) for pair in store.scan(b"o", b"p")]
    for key, value in store.scan(layout.offsets_key(0), layout.OFFSETS_END):
        stored.offsets.append((layout.offsets_number(key), *layout.unpack_all_offsets(value)))
    tiers = [layout.unpack_tier(*pair) for pair in store.scan(b"t", b"u")]
    stored.tiers = [replace(tier, node_id=node_id) for tier in tiers]
    return stored


def write_kv(store: KeyValueStore, node_id: int, stored: StoredOffsets) -> None:
    """Write all rows into an empty store."""
    pairs = _pairs(node_id, stored)
    while some := list(islice(pairs, PAIRS_AT_ONCE)):
        writes = Writes()
        writes.changes.update(some)
        store.write(writes)


def _pairs(node_id: int, stored: StoredOffsets) -> Iterator[tuple[bytes, bytes]]:
    yield layout.log_position_key(node_id), layout.pack_number(stored.log_position)
    yield layout.NEXT_ID_KEY, layout.pack_number(stored.next_id)
    for state, at in stored.checkpoints:
        key = layout.partition_key(state.number, layout.CHECKPOINT)
        yield key, layout.pack_checkpoint(state, at)
    for number, totals in stored.totals.items():
        yield layout.partition_key(number, layout.TOTALS), layout.pack_totals(totals)
    for mapping in stored.mappings:
        key = layout.mapping_key(mapping.number, mapping.base_offset)
        yield key, layout.pack_mapping(mapping)
        yield layout.member_key(mapping), b""
        if mapping.due_ms < NEVER:
            yield layout.due_key(mapping), b""
    for segment in stored.segments:
        yield layout.segment_key(segment.id), layout.pack_segment(segment)
    read = {segment.id for segment in stored.segments if segment.state == LIVE}
    for row in stored.objects:
        yield layout.object_key(row.uuid), layout.pack_object(row)
        yield layout.state_key(row.node_id, row.state, row.uuid), b""
        if row.state == COPY_FINISHED and row.segment_id not in read:
            yield layout.unneeded_key(row.node_id, row.uuid), b""
    for number, dispatch, commit, at in stored.offsets:
        yield layout.offsets_key(number), layout.pack_offsets(dispatch, commit, at)
    for tier in stored.tiers:
        yield layout.tier_key(tier.id), layout.pack_tier(tier)
