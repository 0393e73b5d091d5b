"""`SegmentCatalog` in the database of the metadata, SQLite or PostgreSQL.

It uses the transactions of the metadata, so a process has one writer to the database. The
statements are in `statements`, those for objects of the remote tier in `objects`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.metadata.schema import ORPHANED
from kafkawire.metadata.session import Session, numbers_text, parts
from kafkawire.offsets.catalog.port import (
    DELETING,
    EVERYTHING,
    LIVE,
    STARTED,
    EnteredObject,
    PartitionRow,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    StorageMetrics,
    StoredStats,
    Swap,
)
from kafkawire.offsets.catalog.sql import statements
from kafkawire.offsets.catalog.sql.objects import SqlObjects


class SqlStorage(SqlObjects):
    """Implementation of `SegmentCatalog`."""

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        states, now_ms = checkpoint.partitions, self._now_ms()

        def work(session: Session) -> None:
            numbers = [state.number for state in states]
            led = statements.require_leader(session, numbers, checkpoint.node_id, self._term)
            kept = states if led is numbers else [s for s in states if s.number in led]
            statements.save_states(session, kept, now_ms)
            session.run(
                "INSERT INTO checkpoints (node_id, place, saved_ms) VALUES (?, ?, ?)"
                " ON CONFLICT (node_id) DO UPDATE"
                " SET place = excluded.place, saved_ms = excluded.saved_ms",
                (checkpoint.node_id, checkpoint.log_position, now_ms),
            )

        await self._write(work)

    async def load_log_position(self, node_id: int) -> int:
        found = await self._transact(
            lambda session: session.read_checked(
                "checkpoints", "place", "WHERE node_id = ?", (node_id,)
            )
        )
        return int(found[0][0]) if found else 0

    async def load_partitions(self, numbers: Sequence[int]) -> list[PartitionRow]:
        return await self._transact(lambda session: statements.load_rows(session, numbers))

    async def start_segments(self, rows: Sequence[SegmentRow]) -> list[int]:
        def work(session: Session) -> list[int]:
            session.many(
                "INSERT INTO segments (uuid, node_id, state, size_bytes, live_bytes, generation,"
                " retention_class, created_ms, max_timestamp, delete_after_ms)"
                " VALUES (?, ?, ?, 0, 0, 0, ?, ?, -1, 0)",
                [(r.uuid, r.node_id, STARTED, r.retention_class, r.created_ms) for r in rows],
            )
            query = "SELECT id FROM segments WHERE uuid = ?"
            return [int(session.rows(query, (row.uuid,))[0][0]) for row in rows]

        return await self._write(work)

    async def finish_segments(self, swap: Swap) -> None:
        now_ms = self._now_ms()
        await self._write(lambda session: self._swap(session, swap, now_ms))

    async def replace_lost(self, swap: Swap, entered: Sequence[EnteredObject]) -> None:
        now_ms = self._now_ms()
        await self._write(lambda session: self._swap(session, swap, now_ms, entered))

    def _swap(
        self, session: Session, swap: Swap, now_ms: int, entered: Sequence[EnteredObject] = ()
    ) -> None:
        added_rows = [rows for _, rows in swap.finished] + [rows for _, _, rows in entered]
        numbers = {row.number for rows in added_rows for row in rows}
        numbers.update(state.number for state in swap.checkpoints)
        led = set(self._require_leader(session, sorted(numbers)))
        # Deletes those that are as planned; with fewer the transaction is rolled back.
        if statements.delete_mappings(session, swap.removed) != len(swap.removed):
            raise StaleSwap("a mapping that is to be replaced has changed")
        old = statements.release_segments(session, swap.removed, swap.delete_after_ms)
        generation = 1 + max((row.generation for row in old), default=-1)
        added: list[SegmentRange] = []
        for segment, rows in swap.finished:
            kept = [row._replace(segment_id=segment.id) for row in rows if row.number in led]
            self._finish(session, segment, kept, generation, swap.delete_after_ms)
            added += kept
        again = self._enter_again(session, entered, led)
        others = statements.count_mappings(session, {row.segment_id for row in again})
        added += again
        if not statements.add_mappings(session, added, now_ms, others):
            raise StaleSwap("offsets of a new mapping are taken")
        statements.add_totals(session, added, swap.removed, now_ms)
        statements.save_states(session, [s for s in swap.checkpoints if s.number in led], now_ms)

    def _finish(
        self,
        session: Session,
        segment: SegmentRow,
        rows: Sequence[SegmentRange],
        generation: int,
        delete_after_ms: int,
    ) -> None:
        changed = session.run(
            "UPDATE segments SET state = ?, size_bytes = ?, live_bytes = ?, generation = ?,"
            " max_timestamp = ?, delete_after_ms = ? WHERE id = ? AND state = ?",
            (
                LIVE if rows else DELETING,
                segment.size_bytes,
                sum(row.length for row in rows),
                generation,
                segment.max_timestamp,
                0 if rows else delete_after_ms,
                segment.id,
                STARTED,
            ),
        )
        if changed != 1:
            raise StaleSwap(f"segment {segment.id} is not being written")

    async def remove_mappings(
        self, below: Mapping[int, int], delete_after_ms: int = 0
    ) -> list[SegmentRow]:
        if not below:
            return []

        def work(session: Session) -> list[SegmentRow]:
            others = statements.led_by_others(session, list(below), self._node_id)
            mine = [each for each in below.items() if each[0] not in others]
            whole = [number for number, log_start in mine if log_start >= EVERYTHING]
            gone = statements.find_ended_mappings(session, mine)
            statements.delete_mappings(session, gone)
            statements.forget_partitions(session, whole)
            kept = [row for row in gone if below[row.number] < EVERYTHING]
            statements.add_totals(session, [], kept, now_ms=-1)
            return statements.release_segments(session, gone, delete_after_ms)

        return await self._write(work)

    async def drop_segments(self, ids: Sequence[int]) -> None:
        def work(session: Session) -> None:
            for part in parts(ids):
                some = f"id IN ({numbers_text(part)})"
                session.run(f"DELETE FROM segments WHERE {some} AND {statements.UNUSED}")

        await self._write(work)

    async def segments(
        self, node_id: int, states: Sequence[int], limit: int, after_id: int = 0
    ) -> list[SegmentRow]:
        wanted = (
            f"node_id = {node_id:d} AND state IN ({numbers_text(states)}) AND id > {after_id:d}"
        )
        if not states:
            return []
        return await self._transact(
            lambda session: statements.segments_where(session, wanted, limit)
        )

    async def segments_by_id(self, ids: Sequence[int]) -> list[SegmentRow]:
        def work(session: Session) -> list[SegmentRow]:
            found: list[SegmentRow] = []
            for part in parts(sorted(set(ids))):
                found += statements.segments_where(session, f"id IN ({numbers_text(part)})")
            return found

        return await self._transact(work)

    async def segment_mappings(self, segment_ids: Sequence[int]) -> list[SegmentRange]:
        def work(session: Session) -> list[SegmentRange]:
            found: list[SegmentRange] = []
            for part in parts(sorted(set(segment_ids))):
                some = f"segment_id IN ({numbers_text(part)})"
                order = "segment_id, partition_number, base_offset"
                found += statements.mappings_where(session, f"{some} ORDER BY {order}")
            return found

        return await self._transact(work)

    async def mappings(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[SegmentRange]]:
        return await self._transact(lambda session: statements.covering(session, ranges))

    async def expiring(self, before_ms: int, limit: int) -> list[SegmentRange]:
        due = f"due_ms >= 0 AND due_ms < {before_ms:d} AND {statements.led_by(self._node_id)}"
        order = f"due_ms, partition_number, base_offset LIMIT {limit:d}"
        return await self._transact(
            lambda session: statements.mappings_where(session, f"{due} ORDER BY {order}")
        )

    async def set_due(self, numbers: Sequence[int] | None, due_ms: int) -> None:
        change = (
            f"UPDATE offset_mappings SET due_ms = {due_ms:d} WHERE due_ms >= 0"
            f" AND {statements.led_by(self._node_id)}"
        )

        def work(session: Session) -> None:
            if numbers is None:
                session.run(change)
                return
            for part in parts(numbers):
                session.run(f"{change} AND partition_number IN ({numbers_text(part)})")

        await self._write(work)

    async def orphans(self, limit: int) -> list[int]:
        """Return stored partitions of deleted topics; see `SegmentCatalog.orphans`. Complete:
        deleting a topic marks its mappings."""
        of_deleted = f"WHERE due_ms = {ORPHANED} AND {statements.led_by(self._node_id)}"
        found = await self._transact(
            lambda session: session.read_checked(
                "offset_mappings", "DISTINCT partition_number", f"{of_deleted} LIMIT {limit:d}"
            )
        )
        return sorted(number for (number,) in found)

    async def stats(self, numbers: Sequence[int]) -> list[StoredStats]:
        found = await self._transact(lambda session: statements.stats(session, numbers))
        return [found.get(number) or StoredStats(number) for number in numbers]

    async def metrics(self) -> StorageMetrics:
        return await self._transact(statements.metrics)

    async def close(self) -> None:
        """Close the storage. The metadata closes the database."""
