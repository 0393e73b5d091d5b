"""The statements of `sql.storage`, each inside a transaction of its caller.

SQL for both SQLite and PostgreSQL; sets of numbers are written as literals, so that one statement
takes any number of rows. Tables: kafkawire/metadata/tables.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.checkpoint import (
    PartitionCheckpoint,
    pack_epochs,
    pack_producers,
    unpack_all,
)
from kafkawire.metadata.session import (
    Session,
    among,
    check_flags,
    insert,
    numbers_text,
    parts,
    values_text,
    without_flags,
)
from kafkawire.offsets.catalog.object_logs import is_newest
from kafkawire.offsets.catalog.port import (
    DELETING,
    PartitionRow,
    SegmentRange,
    SegmentRow,
    StorageMetrics,
    StoredStats,
)

MAPPING = (
    "partition_number, segment_id, base_offset, end_offset, start, length, index_start,"
    " index_length, index_checksum, max_timestamp, batches, records, due_ms"
)
SEGMENT = (
    "uuid, node_id, created_ms, id, state, size_bytes, live_bytes, generation, retention_class,"
    " max_timestamp, delete_after_ms, local, object, tier"
)
UNUSED = "NOT EXISTS (SELECT 1 FROM offset_mappings m WHERE m.segment_id = segments.id)"
"""A condition on segments."""


LedEpoch = Callable[[int], "int | None"]
"""Returns the leader epoch in which this broker leads a partition; None if it does not."""
CHECKED_AT_ONCE = 1_000
"""Partitions whose leader epochs are compared at a time: a millisecond on the event loop."""


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """In which term this broker leads: `epoch_of` returns the leader epochs of its partitions,
    `broker_epoch` the epoch of its start."""

    epoch_of: LedEpoch
    broker_epoch: Callable[[], int]


def require_leader(
    session: Session, numbers: Sequence[int], node_id: int, term: LeaderTerm | None
) -> Collection[int]:
    """Return those of the partitions that exist. Raises NOT_LEADER_OR_FOLLOWER unless this broker
    leads all of them, in the same term, if given."""
    # Locked, so that leaders cannot change before the transaction ends. SQLite has only one writer.
    if session.dialect == "postgresql":
        session.rows(f"SELECT id FROM lead_groups WHERE leader = {node_id:d} FOR SHARE")
    # Another process was started as this broker; or, below, the broker has lost and gained a
    # partition meanwhile, of which another leader may have changed the rows.
    if term is not None and not is_newest(session, node_id, term.broker_epoch()):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    gone: set[int] = set()
    for start in range(0, len(numbers), CHECKED_AT_ONCE):
        part = numbers[start : start + CHECKED_AT_ONCE]
        stored = session.rows(
            "SELECT p.number, g.leader, p.epoch_base + g.epoch FROM partitions p"
            " JOIN topics t ON t.id = p.topic_id JOIN lead_groups g ON g.id = p.lead_group"
            f" WHERE {among('p.number', part)} AND t.deleted_ms IS NULL"
        )
        for number, leader, epoch in stored:
            if leader != node_id or (term is not None and term.epoch_of(number) != epoch):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Deleted, unless damage only makes it seem so: then nothing may be left out.
        if len(stored) < len(part):
            missing = sorted(set(part) - {row[0] for row in stored})
            _check_deleted(session, missing)
            gone.update(missing)
    return set(numbers) - gone if gone else numbers


def _check_deleted(session: Session, numbers: Sequence[int]) -> None:
    """Raise DamagedRow if partitions, or their topics, only seem to be deleted."""
    some = f"WHERE {among('number', numbers)}"
    session.read_checked("partitions", "number", some)
    session.read_checked("topics", "number", f"JOIN partitions p ON p.topic_id = topics.id {some}")


def save_states(session: Session, states: Sequence[PartitionCheckpoint], now_ms: int) -> None:
    insert(
        session,
        "INSERT INTO partition_offset_checkpoints (partition_number, checkpoint_offset, log_start,"
        " leader_epochs, producers, updated_at)",
        [
            (
                state.number,
                state.next_offset,
                state.log_start,
                pack_epochs(state.leader_epochs),
                pack_producers(state.producers),
                now_ms,
            )
            for state in states
        ],
        "ON CONFLICT (partition_number) DO UPDATE SET"
        " checkpoint_offset = excluded.checkpoint_offset, log_start = excluded.log_start,"
        " leader_epochs = excluded.leader_epochs, producers = excluded.producers,"
        " updated_at = excluded.updated_at",
    )


def load_rows(session: Session, numbers: Sequence[int]) -> list[PartitionRow]:
    """Load all rows of these partitions. Raises FormatError."""
    states: dict[int, PartitionCheckpoint] = {}
    tiered: dict[int, list[int]] = {}
    mappings: dict[int, list[SegmentRange]] = defaultdict(list)
    for part in parts(numbers):
        some = among("partition_number", part)
        stored = session.read_checked(
            "partition_offset_checkpoints",
            "partition_number, checkpoint_offset, log_start, leader_epochs, producers",
            f"WHERE {some}",
        )
        states.update({state.number: state for state in unpack_all(stored)})
        for row in mappings_where(session, f"{some} ORDER BY partition_number, base_offset"):
            mappings[row.number].append(row)
        columns = "partition_number, dispatch_offset, commit_offset"
        for number, *ends in session.read_checked("tiering_offsets", columns, f"WHERE {some}"):
            tiered[number] = ends
    return [
        PartitionRow(
            number, states.get(number), mappings.get(number) or [], *tiered.get(number, ())
        )
        for number in numbers
    ]


def covering(session: Session, ranges: Sequence[tuple[int, int, int]]) -> list[list[SegmentRange]]:
    """Return, for each (number, from, to), the mappings that cover an offset of [from, to)."""
    made: list[list[SegmentRange]] = [[] for _ in ranges]
    wanted = [(at, *each) for at, each in enumerate(ranges) if each[1] < each[2]]
    for part in parts(wanted):
        # The last mapping that begins at or before `low` is the first that may cover it.
        found = session.rows(
            f"WITH wanted(at, number, low, high) AS (VALUES {values_text(part)})"
            f" SELECT {_of('m', MAPPING)}, w.at, m.intact"
            " FROM wanted w CROSS JOIN offset_mappings m"
            " WHERE m.partition_number = w.number"
            " AND m.base_offset < w.high AND m.end_offset > w.low"
            " AND m.base_offset >= coalesce((SELECT max(b.base_offset) FROM offset_mappings b"
            " WHERE b.partition_number = w.number AND b.base_offset <= w.low), w.low)"
        )
        check_flags("offset_mappings", found)
        # One copy of a row, and no call of Python code for it: half a million rows a second.
        for row in found:
            made[row[-2]].append(_new_tuple(SegmentRange, row[:-2]))
    # Usually sorted already, depending on the query plan.
    for rows in made:
        rows.sort(key=_BASE_OFFSET)
    return made


_new_tuple = tuple.__new__
_BASE_OFFSET = attrgetter("base_offset")


def _of(table: str, columns: str) -> str:
    return ", ".join(f"{table}.{name.strip()}" for name in columns.split(","))


def find_ended_mappings(session: Session, below: Sequence[tuple[int, int]]) -> list[SegmentRange]:
    """Return the mappings that end at or below the log start of (number, log start)."""
    made: list[SegmentRange] = []
    for part in parts(below):
        # The limit of `base_offset` follows from that of `end_offset`: it is for the primary key.
        found = session.rows(
            f"WITH wanted(number, low) AS (VALUES {values_text(part)})"
            f" SELECT {_of('m', MAPPING)}, m.intact FROM wanted w CROSS JOIN offset_mappings m"
            " WHERE m.partition_number = w.number"
            " AND m.base_offset < w.low AND m.end_offset <= w.low"
        )
        made += map(SegmentRange._make, without_flags("offset_mappings", found))
    return made


def mappings_where(session: Session, condition: str) -> list[SegmentRange]:
    """Select mappings. Condition and order are constants of this package, never user input."""
    found = session.read_checked("offset_mappings", MAPPING, f"WHERE {condition}")
    return list(map(SegmentRange._make, found))


def groups_led_by(node_id: int) -> str:
    return f"SELECT id FROM lead_groups WHERE leader = {node_id:d}"


def led_by(node_id: int) -> str:
    """A condition on mappings: of partitions that this broker leads, or led until deleted."""
    return (
        "EXISTS (SELECT 1 FROM partitions p WHERE p.number = offset_mappings.partition_number"
        f" AND p.lead_group IN ({groups_led_by(node_id)}))"
    )


def led_by_others(session: Session, numbers: Sequence[int], node_id: int) -> set[int]:
    """Return those of the partitions that other brokers lead, of topics that are not deleted."""
    # Locked, so that leaders cannot change before the transaction ends. SQLite has only one writer.
    if session.dialect == "postgresql":
        session.rows(f"{groups_led_by(node_id)} FOR SHARE")
    found: set[int] = set()
    for start in range(0, len(numbers), CHECKED_AT_ONCE):
        part = numbers[start : start + CHECKED_AT_ONCE]
        rows = session.rows(
            "SELECT p.number FROM partitions p JOIN topics t ON t.id = p.topic_id"
            f" WHERE {among('p.number', part)} AND t.deleted_ms IS NULL"
            f" AND p.lead_group NOT IN ({groups_led_by(node_id)})"
        )
        found.update(number for (number,) in rows)
    return found


def add_mappings(
    session: Session, rows: Sequence[SegmentRange], now_ms: int, others: int = 0
) -> bool:
    """Insert mappings; return False if they overlap others: then roll back. `others`: how many
    mappings their segments have already."""
    head = f"INSERT INTO offset_mappings ({MAPPING}, created_at)"
    insert(session, head, [(*row, now_ms) for row in rows], "ON CONFLICT DO NOTHING")
    # Inserted first, then compared with the next mapping and the one before. One that begins at the
    # same offset was not inserted, which the count shows.
    count = 0
    for part in parts(sorted({row.segment_id for row in rows})):
        new = f"n.segment_id IN ({numbers_text(part)})"
        found = session.rows(f"SELECT count(*) FROM offset_mappings n WHERE {new}")
        count += found[0][0]
        if session.rows(
            f"SELECT 1 FROM offset_mappings n WHERE {new} AND (EXISTS"
            " (SELECT 1 FROM offset_mappings o WHERE o.partition_number = n.partition_number"
            " AND o.base_offset > n.base_offset AND o.base_offset < n.end_offset)"
            " OR (SELECT o.end_offset FROM offset_mappings o"
            " WHERE o.partition_number = n.partition_number AND o.base_offset < n.base_offset"
            " ORDER BY o.base_offset DESC LIMIT 1) > n.base_offset) LIMIT 1"
        ):
            return False
    return count == others + len(rows)


def count_mappings(session: Session, segment_ids: Iterable[int]) -> int:
    count = 0
    for part in parts(sorted(set(segment_ids))):
        some = f"segment_id IN ({numbers_text(part)})"
        count += session.rows(f"SELECT count(*) FROM offset_mappings WHERE {some}")[0][0]
    return count


def delete_mappings(session: Session, rows: Sequence[SegmentRange]) -> int:
    """Delete mappings if they are unchanged; return how many."""
    count = 0
    for part in parts(rows):
        keys = values_text((r.number, r.base_offset, r.segment_id, r.end_offset) for r in part)
        count += session.run(
            "DELETE FROM offset_mappings"
            " WHERE (partition_number, base_offset, segment_id, end_offset)"
            f" IN (VALUES {keys})"
        )
    return count


def release_segments(
    session: Session, gone: Iterable[SegmentRange], delete_after_ms: int
) -> list[SegmentRow]:
    """Update segments after mappings were deleted: DELETING if none is left."""
    bytes_of: dict[int, int] = defaultdict(int)
    for row in gone:
        bytes_of[row.segment_id] += row.length
    session.many(
        "UPDATE segments SET live_bytes = live_bytes - ? WHERE id = ?",
        [(length, segment_id) for segment_id, length in sorted(bytes_of.items())],
    )
    touched: list[SegmentRow] = []
    for part in parts(sorted(bytes_of)):
        session.run(
            "UPDATE segments SET state = ?, delete_after_ms = ?"
            f" WHERE id IN ({numbers_text(part)}) AND {UNUSED}",
            (DELETING, delete_after_ms),
        )
        touched += segments_where(session, f"id IN ({numbers_text(part)})")
    return touched


def segments_where(session: Session, condition: str, limit: int = -1) -> list[SegmentRow]:
    """Select segments by id. The condition is a constant of this package, never user input."""
    most = f" LIMIT {limit:d}" if limit >= 0 else ""
    found = session.read_checked("segments", SEGMENT, f"WHERE {condition} ORDER BY id{most}")
    return [
        SegmentRow(*[bytes(uuid), *facts, bool(local), bytes(made or b""), tier])
        for uuid, *facts, local, made, tier in found
    ]


def add_totals(
    session: Session, added: Iterable[SegmentRange], gone: Iterable[SegmentRange], now_ms: int
) -> None:
    """Add what inserted and deleted mappings change to the totals of their partitions; `now_ms` -1
    if that is no activity."""
    changed: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for sign, rows in ((1, added), (-1, gone)):
        for row in rows:
            change = changed[row.number]
            change[0] += sign * row.records
            change[1] += sign * row.length
    insert(
        session,
        "INSERT INTO partition_metadata (partition_number, created_at, last_activity_at,"
        " record_count, total_size)",
        [(number, now_ms, now_ms, *change) for number, change in sorted(changed.items())],
        "ON CONFLICT (partition_number) DO UPDATE SET last_activity_at ="
        " CASE WHEN excluded.last_activity_at > partition_metadata.last_activity_at"
        " THEN excluded.last_activity_at ELSE partition_metadata.last_activity_at END,"
        " record_count = partition_metadata.record_count + excluded.record_count,"
        " total_size = partition_metadata.total_size + excluded.total_size",
    )


def forget_partitions(session: Session, numbers: Sequence[int]) -> None:
    """Delete all rows but the mappings of deleted partitions."""
    tables = ("partition_offset_checkpoints", "partition_metadata", "tiering_offsets")
    for part in parts(numbers):
        for table in tables:
            session.run(f"DELETE FROM {table} WHERE partition_number IN ({numbers_text(part)})")


def stats(session: Session, numbers: Sequence[int]) -> dict[int, StoredStats]:
    """Return stored statistics by partition number; partitions that do not exist are left out."""
    made: dict[int, StoredStats] = {}
    for part in parts(numbers):
        found = session.rows(
            "SELECT p.number, coalesce(c.checkpoint_offset, -1), coalesce(c.log_start, 0),"
            " (SELECT count(*) FROM offset_mappings m WHERE m.partition_number = p.number),"
            " coalesce(d.record_count, 0), coalesce(d.total_size, 0), coalesce(d.created_at, -1),"
            " coalesce(c.updated_at, -1), coalesce(d.last_activity_at, -1) FROM partitions p"
            " LEFT JOIN partition_offset_checkpoints c ON c.partition_number = p.number"
            " LEFT JOIN partition_metadata d ON d.partition_number = p.number"
            f" WHERE p.number IN ({numbers_text(part)})"
        )
        for row in found:
            made[row[0]] = StoredStats(*(*row[:7], max(row[7:])))
    return made


def metrics(session: Session) -> StorageMetrics:
    counts = [
        int(session.rows(f"SELECT count(*) FROM {table}")[0][0])
        for table in ("partition_offset_checkpoints", "offset_mappings")
    ]
    states = session.rows(
        "SELECT state, count(*), coalesce(sum(size_bytes), 0), coalesce(sum(live_bytes), 0)"
        " FROM segments GROUP BY state"
    )
    return StorageMetrics(
        counts[0],
        counts[1],
        {state: int(count) for state, count, _, _ in states},
        sum(int(size) for state, _, size, _ in states if state != DELETING),
        sum(int(live) for _, _, _, live in states),
    )
