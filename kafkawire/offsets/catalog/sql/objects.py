"""Objects of the remote tier in SQL: rows, offsets and tiers.

The changes are in `catalog.objects`. Each is one transaction that reads and
writes the affected rows: some hundred at a time, never all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kafkawire.metadata.pairing import SeenInSql
from kafkawire.metadata.session import Session, insert, numbers_text, parts
from kafkawire.metadata.store import Transactions
from kafkawire.offsets.catalog.objects import ObjectChanges, ObjectRows, find_finished
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
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


class SqlRows:
    """`ObjectRows` in SQL, within one transaction."""

    def __init__(
        self, session: Session, led: Callable[[Collection[int]], Collection[int]], now_ms: int
    ) -> None:
        self._session = session
        self._now_ms = now_ms
        self.require_leader = led

    def objects(self, uuids: Iterable[bytes]) -> dict[bytes, ObjectRow]:
        return {row.uuid: row for row in by_uuid(self._session, uuids)}

    def segments(self, ids: Iterable[int]) -> dict[int, SegmentRow]:
        found: list[SegmentRow] = []
        for part in parts(sorted(set(ids))):
            found += statements.segments_where(self._session, f"id IN ({numbers_text(part)})")
        return {row.id: row for row in found}

    def enter_objects(self, rows: Iterable[ObjectRow]) -> None:
        insert(
            self._session,
            f"INSERT INTO remote_objects ({OBJECT})",
            [
                (
                    row.uuid, row.segment_id, row.node_id, row.tier, row.state, row.size_bytes,
                    row.created_ms, row.delete_after_ms, row.ranges,
                )
                for row in rows
            ],
        )  # fmt: skip

    def change_objects(self, rows: Iterable[ObjectRow], state: int, delete_after_ms: int) -> None:
        self._session.many(
            f"UPDATE remote_objects SET state = {state:d}, delete_after_ms = ? WHERE uuid = ?",
            [(delete_after_ms, row.uuid) for row in rows],
        )

    def remove_objects(self, rows: Iterable[ObjectRow]) -> None:
        self._session.many(
            "DELETE FROM remote_objects WHERE uuid = ?", [(row.uuid,) for row in rows]
        )

    def store_segments(self, rows: Iterable[SegmentRow]) -> None:
        self._session.many(
            "UPDATE segments SET object = ?, tier = ?, local = ? WHERE id = ?",
            [(row.object or None, row.tier, int(row.local), row.id) for row in rows],
        )

    def raise_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        names = ("dispatch_offset", "commit_offset")
        higher = ", ".join(
            f"{name} = CASE WHEN excluded.{name} > tiering_offsets.{name}"
            f" THEN excluded.{name} ELSE tiering_offsets.{name} END"
            for name in names
        )
        # Rows that have these offsets are not written again.
        changes = " OR ".join(f"excluded.{name} > tiering_offsets.{name}" for name in names)
        insert(
            self._session,
            "INSERT INTO tiering_offsets (partition_number, dispatch_offset, commit_offset,"
            " updated_at)",
            [(number, *ends, self._now_ms) for number, ends in sorted(offsets.items())],
            f"ON CONFLICT (partition_number) DO UPDATE SET {higher},"
            f" updated_at = excluded.updated_at WHERE {changes}",
        )

    def locked_tiers(self) -> list[TierRow]:
        # Of brokers that claim a tier at the same time one gets its URL. SQLite has only one
        # writer.
        if self._session.dialect == "postgresql":
            self._session.run("LOCK TABLE tiers IN SHARE ROW EXCLUSIVE MODE")
        return _tiers(self._session)

    def writers(self, tier: int) -> set[int]:
        query = "SELECT DISTINCT node_id FROM remote_objects WHERE tier = ?"
        return {node_id for (node_id,) in self._session.rows(query, (tier,))}

    def store_tier(self, row: TierRow) -> None:
        self._session.run(
            f"INSERT INTO tiers ({TIER}) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET url = excluded.url, state = excluded.state,"
            " created_ms = excluded.created_ms, node_id = excluded.node_id",
            (row.id, row.url, row.state, row.created_ms, row.node_id),
        )


class SqlObjects(ObjectChanges):
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
        seen.note_generation(generation)
        return result

    async def _change(self, method: str, work: Callable[[ObjectRows], T]) -> T:
        return await self._write(lambda session: work(self._rows(session)))

    def _rows(self, session: Session) -> SqlRows:
        return SqlRows(session, partial(self._require_leader, session), self._now_ms())

    def _require_leader(self, session: Session, numbers: Collection[int]) -> Collection[int]:
        """Return those of the partitions that exist; see `statements.require_leader`."""
        return statements.require_leader(session, list(numbers), self._node_id, self._term)

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

    async def list_uncommitted(self, limit: int, after: int = -1) -> list[int]:
        query = (
            "SELECT partition_number FROM tiering_offsets WHERE commit_offset < dispatch_offset"
            " AND partition_number > ? AND EXISTS (SELECT 1 FROM partitions p"
            " WHERE p.number = tiering_offsets.partition_number"
            f" AND p.lead_group IN ({statements.groups_led_by(self._node_id)}))"
            f" ORDER BY partition_number LIMIT {limit:d}"
        )
        found = await self._transact(lambda session: session.rows(query, (after,)))
        return [number for (number,) in found]

    async def tiers(self) -> list[TierRow]:
        return await self._transact(_tiers)

    async def enter_remote(self, rows: Sequence[EnteredObject]) -> list[int]:
        now_ms = self._now_ms()
        numbers = sorted({each.number for _, _, mappings in rows for each in mappings})

        def work(session: Session) -> list[int]:
            stored = self._rows(session)
            led = set(stored.require_leader(numbers))
            added: list[SegmentRange] = []
            ids: list[int] = []
            for row, made, mappings in rows:
                kept = [each for each in mappings if each.number in led]
                ids.append(_enter_segment(session, row, made, kept))
                finished = replace(made, segment_id=ids[-1], state=COPY_FINISHED, delete_after_ms=0)
                stored.enter_objects([finished])
                added += [each._replace(segment_id=ids[-1]) for each in kept]
            if not statements.add_mappings(session, added, now_ms):
                raise StaleSwap("offsets of a mapping that is entered are taken")
            statements.add_totals(session, added, [], now_ms)
            return ids

        return await self._write(work)

    def _enter_again(
        self, session: Session, entered: Sequence[EnteredObject], led: Collection[int]
    ) -> list[SegmentRange]:
        """Make finished objects' segments LIVE; return the new mappings. Raises StaleSwap."""
        added: list[SegmentRange] = []
        for given, stored, segment, kept in find_finished(self._rows(session), entered, led):
            if segment is None:
                segment_id = _enter_segment(session, given, stored, kept)
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
    return [TierRow(*row) for row in session.read_checked("tiers", TIER, "ORDER BY id")]


def objects_where(session: Session, wanted: str, values: Sequence[bytes] = ()) -> list[ObjectRow]:
    """Select objects. The condition is a constant of this package, never user input."""
    found = session.read_checked("remote_objects", OBJECT, f"WHERE {wanted}", tuple(values))
    return [ObjectRow(*[bytes(uuid), *facts, bytes(last)]) for uuid, *facts, last in found]


def by_uuid(session: Session, uuids: Iterable[bytes]) -> list[ObjectRow]:
    rows: list[ObjectRow] = []
    wanted = sorted(set(uuids))
    for start in range(0, len(wanted), UUIDS_AT_ONCE):
        part = wanted[start : start + UUIDS_AT_ONCE]
        marks = ", ".join("?" * len(part))
        rows += objects_where(session, f"uuid IN ({marks}) ORDER BY uuid", part)
    return rows


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
