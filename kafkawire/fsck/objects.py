"""Check rows of the remote tier against those of segments and partitions, without access to the
bucket.

`kafkawire tier scrub` checks whether the objects exist. The remains of an interrupted upload or
removal are no problem: the next start continues with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.fsck.report import Fix, FsckReport
from kafkawire.log.io.ports import Env
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    LIVE,
    ObjectRow,
    PartitionRow,
    SegmentCatalog,
    SegmentRow,
)

ROWS_AT_ONCE = 1000
"""Object rows of one round trip."""


class ObjectCheck:
    """One check of the finished objects of a broker. `segments`: its rows, all of them."""

    def __init__(
        self,
        env: Env,
        node_id: int,
        storage: SegmentCatalog,
        report: FsckReport,
        segments: Iterable[SegmentRow],
    ) -> None:
        self._env = env
        self._node_id = node_id
        self._storage = storage
        self._report = report
        self._segments = {row.id: row for row in segments}

    async def run(self) -> set[int]:
        """Check all of them; return the ids of the LIVE segments that have a finished object."""
        whole: set[int] = set()
        after = b""
        while True:
            states = (COPY_FINISHED,)
            rows = await self._storage.objects(self._node_id, states, ROWS_AT_ONCE, after)
            for row in rows:
                segment = self._segments.get(row.segment_id)
                if segment is None or segment.state != LIVE:
                    continue  # it is removed later
                if segment.object == row.uuid and segment.tier == row.tier:
                    whole.add(segment.id)
                else:
                    self._forgotten(segment, row)
            if len(rows) < ROWS_AT_ONCE:
                break
            after = rows[-1].uuid
        for segment in self._segments.values():
            self._pointer(segment, segment.id in whole)
        return whole

    def _forgotten(self, segment: SegmentRow, row: ObjectRow) -> None:
        other = f"is read from {segment.object.hex()}" if segment.object else "has no object"
        self._report.add(
            f"object {row.uuid.hex()}",
            f"its row says that it is finished, but its segment {segment.uuid.hex()} {other}",
            "the object is deleted from the remote tier once the broker runs",
            self._delete(row),
        )

    def _delete(self, row: ObjectRow) -> Fix:
        async def fix() -> None:
            await self._storage.delete_objects([row.uuid], self._env.clock.now_ms())

        return fix

    def _pointer(self, segment: SegmentRow, whole: bool) -> None:
        if segment.state != LIVE or whole:
            return
        where = f"segment {segment.uuid.hex()}"
        if segment.object:
            self._report.add(
                where, f"its row points to the object {segment.object.hex()}, which is not finished"
            )
        elif not segment.local:
            self._report.add(where, "its rows say that it is neither here nor in the remote tier")


def beyond(row: PartitionRow) -> list[str]:
    """Check how far a partition is tiered; return the problems as sentences. Pure."""
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    cut = max([start, *(mapping.end_offset for mapping in row.mappings)])
    problems = []
    if row.dispatch_offset > cut:
        problems.append(
            f"its dispatch offset {row.dispatch_offset} is beyond its segments, which end at {cut}"
        )
    if not 0 <= row.commit_offset <= row.dispatch_offset:
        problems.append(
            f"its commit offset {row.commit_offset} is not between 0 and its dispatch offset, "
            f"{row.dispatch_offset}"
        )
    return problems
