"""Objects of the remote tier in SQL: rows, offsets and tiers.

Each method is one transaction that reads the affected rows, applies the rules of `object_rules`,
and writes the changed rows: some hundred at a time, never all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kafkawire.metadata.pairing import SeenInSql
from kafkawire.metadata.session import Session, insert, numbers_text, parts
from kafkawire.metadata.store import Transactions
from kafkawire.offsets.catalog import object_rules
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    DELETING,
    LIVE,
    EnteredObject,
    ObjectRow,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    TierRow,
)
from kafkawire.offsets.catalog.sql import statements

T = TypeVar("T")

UUIDS_AT_ONCE = 1_000
"""Uuids per statement, a parameter each: the databases allow 32,766."""
OBJECT = "uuid, segment_id, node_id, tier, state, size_bytes, created_ms, delete_after_ms, ranges"
TIER = "id, url, state, created_ms, node_id"
NOT_READ = (
    "NOT EXISTS (SELECT 1 FROM segments s WHERE s.id = remote_objects.segment_id"
    f" AND s.state = {LIVE})"
)
"""A condition on objects."""


class SqlObjects:
    """The part of `sql.storage.SqlStorage` for objects. `now_ms` is the clock of the time columns;
    no decision uses it. `term`: what writes for partitions need; None: only leaders are
    checked. `seen`: what a running broker has seen in SQL."""

    def __init__(
        self,
        transactions: Transactions,
        node_id: int,
        now_ms: Callable[[], int],
        term: statements.LeaderTerm | None = None,
        seen: SeenInSql | None = None,
    ) -> None:
        self._seen = seen
        self._transact = transactions.transact
        self._node_id = node_id
        self._now_ms = now_ms
        self._term = term

    async def _write(self, work: Callable[[Session], T]) -> T:
        """Run a transaction that changes rows, and raise the generation in it. Raises
        OlderMetadata, before anything is changed, if the database was replaced by an older copy."""
        node_id, seen = self._node_id, self._seen
        if seen is None:
            return await self._transact(work)
        generation, result = await self._transact(
            lambda session: (seen.raise_generation(session, node_id), work(session))
        )
        seen.note(generation)
        return result

    def _led(self, session: Session, numbers: Sequence[int]) -> Collection[int]:
        """Return those of the partitions that exist; see `statements.led`."""
        return statements.led(session, numbers, self._node_id, self._term)

    async def start_objects(
        self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]
    ) -> list[bytes]:
        now_ms = self._now_ms()

        def work(session: Session) -> list[bytes]:
            led = self._led(session, sorted(dispatched))
            segments = _segments(session, [row.segment_id for row in rows])
            entered = [
                row for row in rows if object_rules.may_start(segments.get(row.segment_id), row)
            ]
            _enter(session, [replace(row, state=COPY_STARTED) for row in entered])
            raise_offsets(session, {number: (dispatched[number], 0) for number in led}, now_ms)
            return [row.uuid for row in entered]

        return await self._write(work)

    async def finish_objects(
        self, uuids: Sequence[bytes], committed: Mapping[int, int]
    ) -> list[SegmentRow]:
        now_ms = self._now_ms()

        def work(session: Session) -> list[SegmentRow]:
            led = self._led(session, sorted(committed))
            found = {row.uuid: row for row in by_uuid(session, uuids)}
            segments = _segments(session, [row.segment_id for row in found.values()])
            done, replaced = object_rules.finish(uuids, found, segments)
            _state(session, [row.uuid for row in done], COPY_FINISHED, 0)
            _state(session, replaced, DELETE_STARTED, 0)
            _point(session, [segments[row.segment_id] for row in done])
            if len(done) == len(set(uuids)):
                ends = {number: (committed[number], committed[number]) for number in led}
                raise_offsets(session, ends, now_ms)
            return [segments[at] for at in sorted({row.segment_id for row in done})]

        return await self._write(work)

    async def delete_objects(self, uuids: Sequence[bytes], delete_after_ms: int) -> None:
        def work(session: Session) -> None:
            rows = [row for row in by_uuid(session, uuids) if row.state != DELETE_STARTED]
            _state(session, [row.uuid for row in rows], DELETE_STARTED, delete_after_ms)
            session.many(
                "UPDATE segments SET object = NULL, tier = 0 WHERE id = ? AND object = ?",
                [(row.segment_id, row.uuid) for row in rows],
            )

        await self._write(work)

    async def schedule_object_deletion(self, rows: Sequence[ObjectRow]) -> None:
        def work(session: Session) -> None:
            known = {row.uuid for row in by_uuid(session, [row.uuid for row in rows])}
            for row in rows:
                if row.uuid not in known:
                    _enter(session, [replace(row, state=DELETE_STARTED)])
                    _state(session, [row.uuid], DELETE_STARTED, row.delete_after_ms)

        await self._write(work)

    async def drop_objects(self, uuids: Sequence[bytes]) -> None:
        gone = f"DELETE FROM remote_objects WHERE uuid = ? AND state = {DELETE_STARTED}"
        await self._write(lambda session: session.many(gone, [(uuid,) for uuid in uuids]))

    async def objects(
        self, node_id: int, states: Sequence[int], limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        if not states:
            return []
        wanted = (
            f"node_id = {node_id:d} AND state IN ({numbers_text(states)}) AND uuid > ?"
            f" ORDER BY uuid LIMIT {limit:d}"
        )
        return await self._transact(lambda session: objects_where(session, wanted, [after]))

    async def objects_by_uuid(self, uuids: Sequence[bytes]) -> list[ObjectRow]:
        return await self._transact(lambda session: by_uuid(session, uuids))

    async def unneeded_objects(
        self, node_id: int, limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        wanted = (
            f"node_id = {node_id:d} AND state = {COPY_FINISHED} AND {NOT_READ} AND uuid > ?"
            f" ORDER BY uuid LIMIT {limit:d}"
        )
        return await self._transact(lambda session: objects_where(session, wanted, [after]))

    async def set_local(self, ids: Sequence[int], local: bool) -> list[SegmentRow]:
        def work(session: Session) -> list[SegmentRow]:
            segments = _segments(session, ids)
            session.many(
                f"UPDATE segments SET local = {int(local)} WHERE id = ?",
                [(row.id,) for row in object_rules.changed(segments.values(), local)],
            )
            return list(segments.values())

        return await self._write(work)

    async def save_tiering_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        now_ms = self._now_ms()

        def work(session: Session) -> None:
            led = self._led(session, sorted(offsets))
            raise_offsets(session, {number: offsets[number] for number in led}, now_ms)

        await self._write(work)

    async def uncommitted(self, limit: int, after: int = -1) -> list[int]:
        query = (
            "SELECT partition_number FROM tiering_offsets WHERE commit_offset < dispatch_offset"
            " AND partition_number > ? AND EXISTS (SELECT 1 FROM partitions p"
            " WHERE p.number = tiering_offsets.partition_number"
            f" AND p.lead_group IN ({statements.groups_led_by(self._node_id)}))"
            f" ORDER BY partition_number LIMIT {limit:d}"
        )
        found = await self._transact(lambda session: session.rows(query, (after,)))
        return [number for (number,) in found]

    async def claim_tier(self, url: str, own_url: str, now_ms: int) -> TierRow:
        def work(session: Session) -> TierRow:
            rows = _locked_tiers(session)
            found, new = object_rules.claimed(rows, url, own_url, self._node_id, now_ms)
            if new:
                _save_tier(session, found)
            return found

        return await self._write(work)

    async def adopt_tiers(self) -> list[TierRow]:
        def work(session: Session) -> list[TierRow]:
            rows = _locked_tiers(session)
            for row in object_rules.adopted(
                rows, self._node_id, lambda tier: _writers(session, tier)
            ):
                _save_tier(session, row)
            return _tiers(session)

        return await self._write(work)

    async def save_tier(self, row: TierRow) -> None:
        await self._write(lambda session: _save_tier(session, row))

    async def tiers(self) -> list[TierRow]:
        return await self._transact(_tiers)

    async def relocate_objects(self, moved: Mapping[bytes, ObjectRow]) -> list[SegmentRow]:
        def work(session: Session) -> list[SegmentRow]:
            old = {row.uuid: row for row in by_uuid(session, list(moved))}
            segments = _segments(session, [row.segment_id for row in old.values()])
            new, touched = object_rules.relocate(moved, old, segments)
            _enter(session, new)
            session.many(
                f"UPDATE remote_objects SET state = {DELETE_STARTED}, delete_after_ms = ?"
                " WHERE uuid = ?",
                [(moved[uuid].delete_after_ms, uuid) for uuid in touched],
            )
            rows = [segments[row.segment_id] for row in new]
            _point(session, rows)
            return sorted(rows, key=_id)

        return await self._write(work)

    async def enter_remote(self, rows: Sequence[EnteredObject]) -> list[int]:
        now_ms = self._now_ms()
        numbers = sorted({each.number for _, _, mappings in rows for each in mappings})

        def work(session: Session) -> list[int]:
            led = set(self._led(session, numbers))
            added: list[SegmentRange] = []
            ids: list[int] = []
            for row, made, mappings in rows:
                kept = [each for each in mappings if each.number in led]
                ids.append(_enter_segment(session, row, made, kept))
                _enter(session, [replace(made, segment_id=ids[-1], state=COPY_FINISHED)])
                added += [each._replace(segment_id=ids[-1]) for each in kept]
            if not statements.add_mappings(session, added, now_ms):
                raise StaleSwap("offsets of a mapping that is entered are taken")
            statements.add_totals(session, added, [], now_ms)
            return ids

        return await self._write(work)

    def _enter_again(
        self, session: Session, entered: Sequence[EnteredObject], led: Collection[int]
    ) -> list[SegmentRange]:
        """Make the segments of finished objects LIVE; return their new mappings. Raises
        StaleSwap."""
        found = {row.uuid: row for row in by_uuid(session, [made.uuid for _, made, _ in entered])}
        segments = _segments(session, [row.segment_id for row in found.values()])
        added: list[SegmentRange] = []
        for row, made, mappings in entered:
            stored = found.get(made.uuid)
            segment = None if stored is None else segments.get(stored.segment_id)
            if stored is None or not object_rules.entered(segment, stored, made):
                raise StaleSwap(f"object {made.uuid.hex()} is not a finished one any more")
            kept = [each for each in mappings if each.number in led]
            if not kept:
                continue
            if segment is None:
                segment_id = _enter_segment(session, row, stored, kept)
                session.run(
                    "UPDATE remote_objects SET segment_id = ? WHERE uuid = ?",
                    (segment_id, stored.uuid),
                )
            else:
                segment_id = segment.id
                session.run(
                    f"UPDATE segments SET local = CASE state WHEN {LIVE} THEN local ELSE 0 END,"
                    f" state = {LIVE}, delete_after_ms = 0, live_bytes = live_bytes + ?"
                    " WHERE id = ?",
                    (sum(each.length for each in kept), segment_id),
                )
            added += [each._replace(segment_id=segment_id) for each in kept]
        return added


def _tiers(session: Session) -> list[TierRow]:
    return [TierRow(*row) for row in session.checked("tiers", TIER, "ORDER BY id")]


def _locked_tiers(session: Session) -> list[TierRow]:
    """Return the tiers, which no other broker can change before the transaction ends."""
    if session.dialect == "postgresql":  # SQLite has only one writer
        session.run("LOCK TABLE tiers IN SHARE ROW EXCLUSIVE MODE")
    return _tiers(session)


def _writers(session: Session, tier: int) -> set[int]:
    """Return the brokers that have objects in a tier."""
    query = "SELECT DISTINCT node_id FROM remote_objects WHERE tier = ?"
    return {node_id for (node_id,) in session.rows(query, (tier,))}


def _save_tier(session: Session, row: TierRow) -> None:
    session.run(
        f"INSERT INTO tiers ({TIER}) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET url = excluded.url, state = excluded.state,"
        " created_ms = excluded.created_ms, node_id = excluded.node_id",
        (row.id, row.url, row.state, row.created_ms, row.node_id),
    )


def objects_where(session: Session, wanted: str, values: Sequence[bytes] = ()) -> list[ObjectRow]:
    """Select objects. The condition is a constant of this package, never user input."""
    found = session.checked("remote_objects", OBJECT, f"WHERE {wanted}", tuple(values))
    return [ObjectRow(*[bytes(uuid), *facts, bytes(last)]) for uuid, *facts, last in found]


def by_uuid(session: Session, uuids: Iterable[bytes]) -> list[ObjectRow]:
    """Return the objects that exist, by uuid."""
    rows: list[ObjectRow] = []
    wanted = sorted(set(uuids))
    for start in range(0, len(wanted), UUIDS_AT_ONCE):
        part = wanted[start : start + UUIDS_AT_ONCE]
        marks = ", ".join("?" * len(part))
        rows += objects_where(session, f"uuid IN ({marks}) ORDER BY uuid", part)
    return rows


def raise_offsets(session: Session, offsets: Mapping[int, tuple[int, int]], now_ms: int) -> None:
    """Raise dispatch and commit offsets. Rows that have them are not written again."""
    names = ("dispatch_offset", "commit_offset")
    higher = ", ".join(
        f"{name} = CASE WHEN excluded.{name} > tiering_offsets.{name}"
        f" THEN excluded.{name} ELSE tiering_offsets.{name} END"
        for name in names
    )
    changes = " OR ".join(f"excluded.{name} > tiering_offsets.{name}" for name in names)
    insert(
        session,
        "INSERT INTO tiering_offsets (partition_number, dispatch_offset, commit_offset,"
        " updated_at)",
        [(number, *ends, now_ms) for number, ends in sorted(offsets.items())],
        f"ON CONFLICT (partition_number) DO UPDATE SET {higher}, updated_at = excluded.updated_at"
        f" WHERE {changes}",
    )


def _segments(session: Session, ids: Iterable[int]) -> dict[int, SegmentRow]:
    """Return segments by id, sorted."""
    found: list[SegmentRow] = []
    for part in parts(sorted(set(ids))):
        found += statements.segments_where(session, f"id IN ({numbers_text(part)})")
    return {row.id: row for row in found}


def _enter(session: Session, rows: Sequence[ObjectRow]) -> None:
    insert(
        session,
        f"INSERT INTO remote_objects ({OBJECT})",
        [
            (
                row.uuid,
                row.segment_id,
                row.node_id,
                row.tier,
                row.state,
                row.size_bytes,
                row.created_ms,
                0,
                row.ranges,
            )
            for row in rows
        ],
    )


def _state(session: Session, uuids: Sequence[bytes], state: int, delete_after_ms: int) -> None:
    session.many(
        f"UPDATE remote_objects SET state = {state:d}, delete_after_ms = ? WHERE uuid = ?",
        [(delete_after_ms, uuid) for uuid in uuids],
    )


def _point(session: Session, rows: Iterable[SegmentRow]) -> None:
    """Store the object of each segment."""
    session.many(
        "UPDATE segments SET object = ?, tier = ? WHERE id = ?",
        [(row.object, row.tier, row.id) for row in rows],
    )


def _enter_segment(
    session: Session, row: SegmentRow, made: ObjectRow, mappings: Sequence[SegmentRange]
) -> int:
    session.run(
        "INSERT INTO segments (uuid, node_id, state, size_bytes, live_bytes, generation,"
        " retention_class, created_ms, max_timestamp, delete_after_ms, local, object, tier)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)",
        (
            row.uuid,
            row.node_id,
            LIVE if mappings else DELETING,
            row.size_bytes,
            sum(each.length for each in mappings),
            row.generation,
            row.retention_class,
            row.created_ms,
            row.max_timestamp,
            made.uuid,
            made.tier,
        ),
    )
    return int(session.rows("SELECT id FROM segments WHERE uuid = ?", (row.uuid,))[0][0])


def _id(row: SegmentRow) -> int:
    return row.id
