"""New records of a topic as they come, sampled so that a fast topic costs no more than a slow one.

Each poll reads a bounded part of what is new; what it does not read, or does not show, is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import LATEST, leaders, list_offsets
from kafkawire.console.views.records import (
    MAX_PARTITIONS,
    FoundRecord,
    RecordOrder,
    RecordQuery,
    read_records,
)

MAX_ROWS = 20
"""Records of one poll, one a second: more cannot be read by a person."""
MAX_READ = 16
"""Partitions that a poll reads, a request or two for each."""
AT_MOST_BEHIND = 200
"""Offsets of a partition that a poll reads, and records that it keeps; older ones are skipped."""
TOTAL_BYTES = 4 << 20
"""Bytes that the polls of all viewers together read in a second."""


class TailPart(NamedTuple):
    """The new records of one poll, the newest first; how many offsets were skipped; and why a
    partition could not be read."""

    records: Sequence[FoundRecord]
    skipped: int
    error: str = ""


class TopicFollower:
    """One viewer's position in a topic: it begins at the end. `query`: what is kept of it."""

    def __init__(self, query: RecordQuery) -> None:
        self._query = query
        self._positions: dict[int, int] = {}
        self._polls = 0

    def read_new(self, cluster: Cluster, viewers: int) -> TailPart:
        """Return what is new, reading at most a share of TOTAL_BYTES for one of `viewers`.
        ClientError."""
        ends = self._ends(cluster)
        positions = {index: self._positions.get(index, end) for index, end in ends.items()}
        fresh = [index for index, end in ends.items() if end > positions[index]]
        # Others each time, so that none is always left for later.
        at = self._polls * MAX_READ % max(1, len(fresh))
        chosen = [*fresh[at:], *fresh[:at]][:MAX_READ]
        self._polls += 1
        skipped = 0
        for index in chosen:
            first = max(positions[index], ends[index] - AT_MOST_BEHIND)
            skipped += first - positions[index]
            positions[index] = first
        # What is not chosen is at its end for this search.
        searched = replace(
            self._query,
            order=RecordOrder.FORWARD,
            positions={**ends, **{index: positions[index] for index in chosen}},
            time_ms=None,
            limit=AT_MOST_BEHIND,
        )
        page = None
        if chosen:
            share = TOTAL_BYTES // max(1, viewers)
            page = read_records(cluster, searched, budget_bytes=share)
            positions |= {e.partition: e.end for e in page.searched if e.partition in chosen}
        self._positions = positions
        if page is None:
            return TailPart([], 0)
        error = next((f"partition {e.partition}: {e.error}" for e in page.searched if e.error), "")
        found = page.records[::-1]
        return TailPart(found[:MAX_ROWS], skipped + len(found[MAX_ROWS:]), error)

    def _ends(self, cluster: Cluster) -> Mapping[int, int]:
        topic = self._query.topic
        led_by = leaders(cluster, [topic])
        if self._query.partition is not None:
            led_by = {
                place: at for place, at in led_by.items() if place[1] == self._query.partition
            }
        if len(led_by) > MAX_PARTITIONS:
            raise ClientError(
                f"topic {topic} has {len(led_by):,} partitions, of which a live page follows "
                f"{MAX_PARTITIONS:,}: choose one"
            )
        found = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
        return {index: end for (_, index), end in found.items()}
