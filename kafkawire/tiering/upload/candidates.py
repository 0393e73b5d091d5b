"""Select segments for upload, with their deadlines.

A segment is uploaded if any of its partitions is tiered. The lag counts from the time its oldest
record was written to the journals; at most half of the limit has passed when it is cut. A segment
below `tiering.min.object.bytes` waits until four fifths have passed. After a start its age comes
from the wall clock, which may jump, but is never negative.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.segments.cut.schedule import CUT_PART
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog, SegmentRow
from kafkawire.tiering.upload.scheduler import Candidate

WAIT_PART = 0.8
UPLOAD_S = 2.5
"""Part of the lag limit that a small segment waits for, but so much time is reserved for the upload
itself."""
PAGE = 10
"""Segments whose mappings are read at a time: each may have ten thousand."""
NEVER_MS = 1 << 62
SLICE = 2000
"""Mappings checked per event-loop iteration: a millisecond."""

ConfigOf = Callable[[int], TopicConfig | None]


def can_upload(row: SegmentRow) -> bool:
    """Return whether a segment could be uploaded: it is live, and has a file and no object."""
    return row.state == LIVE and row.local and not row.object


class UploadCandidates:
    """Selects the segments that are candidates for upload. `config_of` returns the settings of a
    partition, or None if it was deleted."""

    def __init__(
        self, env: Env, storage: SegmentCatalog, store: SegmentStore, config_of: ConfigOf
    ) -> None:
        self._env = env
        self._storage = storage
        self._store = store
        self._config_of = config_of

    async def candidates(self, ids: Sequence[int]) -> list[Candidate]:
        """Return the segments to be uploaded. Raises the storage's errors."""
        found: list[Candidate] = []
        for at in range(0, len(ids), PAGE):
            rows = {
                segment_id: segment.row
                for segment_id in ids[at : at + PAGE]
                if (segment := self._store.by_id.get(segment_id)) and can_upload(segment.row)
            }
            mappings = await self._storage.segment_mappings(sorted(rows)) if rows else []
            for segment_id, some in groupby(mappings, key=lambda mapping: mapping.segment_id):
                numbers = array("q", sorted({mapping.number for mapping in some}))
                candidate = await self._candidate(rows[segment_id], numbers)
                if candidate is not None:
                    found.append(candidate)
        return found

    async def _candidate(self, row: SegmentRow, numbers: Sequence[int]) -> Candidate | None:
        lag_ms = min_bytes = NEVER_MS
        for at, number in enumerate(numbers, 1):
            config = self._config_of(number)
            if config is not None and config.copies:
                lag_ms = min(lag_ms, config.tier_lag_ms)
                min_bytes = min(min_bytes, config.tier_min_bytes)
            if at % SLICE == 0:
                await self._env.slices.pause()
        if lag_ms == NEVER_MS:
            return None
        now, lag_s = self._env.clock.monotonic(), lag_ms / 1000
        since = self._since(row, lag_s, now)
        # The output of a rewrite has records of any age, so it does not wait.
        small = row.size_bytes < min_bytes and not row.generation
        due = since + max(0.0, min(WAIT_PART * lag_s, lag_s - UPLOAD_S)) if small else now
        late = since + lag_s
        # Late already, as of a topic that is newly tiered: its limit begins now.
        history = late <= now
        if history:
            late = now + lag_s
        return Candidate(row.id, row.size_bytes, due, late, history, numbers, since)

    def _since(self, row: SegmentRow, lag_s: float, now: float) -> float:
        segment = self._store.by_id.get(row.id)
        if segment is not None and segment.since is not None:
            return segment.since
        # After a start that is unknown: at most so long before the segment was cut. The wall clock
        # may have jumped, so the age is never negative.
        age_s = max(0, self._env.clock.now_ms() - row.created_ms) / 1000
        return now - age_s - (0 if row.generation else CUT_PART * lag_s)

    async def list_late_partitions(self, candidate: Candidate) -> list[int]:
        """Return the partitions of a candidate whose own lag limit is exceeded now."""
        now = self._env.clock.monotonic()
        missed: list[int] = []
        for at, number in enumerate(candidate.numbers, 1):
            config = self._config_of(number)
            if config is not None and config.copies:
                own = candidate.since + config.tier_lag_ms / 1000
                if (candidate.late if candidate.history else own) <= now:
                    missed.append(number)
            if at % SLICE == 0:
                await self._env.slices.pause()
        return missed


def inherit(candidate: Candidate, before: Iterable[Candidate]) -> None:
    """Keep the ages of replaced candidates."""
    # So that changed settings, or a merge of segments that were not uploaded yet, do not restart
    # the lag limit.
    numbers = set(candidate.numbers)
    for old in before:
        if not numbers.isdisjoint(old.numbers):
            candidate.since = min(candidate.since, old.since)
            candidate.late = min(candidate.late, old.late)
            candidate.history = candidate.history or old.history
