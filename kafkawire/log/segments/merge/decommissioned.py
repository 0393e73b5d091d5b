"""Segments of decommissioned brokers, which the leaders of their partitions copy.

Only the broker that wrote a segment deletes it, so a broker can leave the cluster only once other
segments have what its own still have. The leader of each partition copies what it leads, so a
segment that several brokers lead parts of is read by each of them. Most partitions are not in
memory after their move, and nothing may ever use them: so the segments are found in SQL.

Rows are read in rounds over all segments of these brokers, a part at a time. After a round that has
found nothing there is a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog, SegmentRow

PAGE = 4
"""Segments whose mappings are read in one transaction: ten thousand rows each at most."""
PAGES_AT_ONCE = 25
"""Pages that are read before other work of the merger: some hundred milliseconds of waiting for
SQL."""
ROUND_S = 10.0
"""Seconds between two rounds in which nothing was found: each reads all mapping rows of the
broker's segments."""
SLICE = 1000
"""Mappings checked per event-loop iteration: a millisecond."""


class DecommissionedSegments:
    """Finds segments of decommissioned brokers with ranges of partitions that are led here.
    `brokers` returns those brokers, none if this one is one of them; `config_of` the settings of a
    partition, None: it does not exist, or is not led here."""

    __slots__ = (
        "_after", "_brokers", "_config_of", "_env", "_found", "_next_s", "_storage", "_store",
    )  # fmt: skip

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        store: SegmentStore,
        brokers: Callable[[], Collection[int]],
        config_of: Callable[[int], TopicConfig | None],
    ) -> None:
        self._env = env
        self._storage = storage
        self._store = store
        self._brokers = brokers
        self._config_of = config_of
        self._after = (-1, 0)  # the broker and the segment up to which the round has come
        self._found = False
        self._next_s = 0.0

    def has(self, row: SegmentRow) -> bool:
        """Return whether a segment is of a broker that is decommissioned."""
        return row.node_id in self._brokers()

    async def next_segment(self, leave_out: Collection[int]) -> Segment | None:
        """Return the next segment of the round with something to copy, without those whose ids are
        left out; None if there is none, or none among the rows that were read."""
        brokers = sorted(self._brokers())
        if not brokers or self._env.clock.monotonic() < self._next_s:
            return None
        for _ in range(PAGES_AT_ONCE):
            node, after = self._after
            left = [each for each in brokers if each >= node]
            if not left:
                self._end_round()
                return None
            # That broker is done, or is not decommissioned any more.
            if left[0] != node:
                node, after = left[0], 0
            rows = await self._storage.segments(node, (LIVE,), PAGE, after)
            found = await self._first(rows, leave_out)
            if found is not None:
                self._after, self._found = (node, found.id), True
                return self._store.add_other(found)
            # A page that is not full was the last one of this broker.
            self._after = (node, rows[-1].id) if len(rows) == PAGE else (node + 1, 0)
        return None

    async def _first(self, rows: list[SegmentRow], leave_out: Collection[int]) -> SegmentRow | None:
        """Return the first of these segments that has a range of a partition led here."""
        wanted = [row.id for row in rows if row.id not in leave_out]
        led: set[int] = set()
        for at, mapping in enumerate(await self._storage.segment_mappings(wanted), 1):
            if self._config_of(mapping.number) is not None:
                led.add(mapping.segment_id)
            if at % SLICE == 0:
                await self._env.slices.pause()
        return next((row for row in rows if row.id in led), None)

    def _end_round(self) -> None:
        # Only a partition that moves here can change a round without a find.
        self._next_s = 0.0 if self._found else self._env.clock.monotonic() + ROUND_S
        self._after, self._found = (-1, 0), False
