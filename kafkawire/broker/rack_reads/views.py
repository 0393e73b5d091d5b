"""Partitions that other brokers lead, as far as this broker can read them: in the remote tier, and
in segment files of its own data folder.

A view has the ranges below the partition's commit offset, each as a partition that takes no appends
and is known only here: neither the log nor the table of partitions has it. Only mapping rows are
loaded, 88 bytes each. Shell: reads SQL and the clock.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kafkawire.broker.moving.plan import share_folder
from kafkawire.broker.rack_reads.copies import FollowedLogs
from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.log.manager import Log
from kafkawire.log.partition.loader import LOAD_AT_ONCE, NotLoaded
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.state import LoadedPartition
from kafkawire.log.partition.stored_rows import limit_to_segments
from kafkawire.metadata.catalog import Catalog, Location
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog, SegmentRange

logger = logging.getLogger(__name__)

MAX_AGE_S = 10.0
"""After which a view is loaded again: one query of SQL. So long records may be read here that were
deleted at the leader, by DeleteRecords or retention."""
MIN_AGE_S = 1.0
"""Before which a view is not loaded again because it does not have an offset: its readers go to the
leader then."""
MAX_ROWS = 1_000_000
"""Mapping rows of all views: 88 MB. The views that were used last are kept."""
MAX_VIEWS = 10_000
"""Views, of which each takes 3 KB without its rows."""
ROWS_AT_ONCE = 200
"""Mapping rows that are put into columns in one step: a third of a millisecond."""


class View(NamedTuple):
    """The readable ranges of one partition: `ranges` in offset order, `rows` mapping rows in all,
    read at `loaded_s`."""

    loaded_s: float
    ranges: list[Partition]
    starts: list[int]  # first offset of each
    rows: int = 0

    def at(self, offset: int) -> Partition | None:
        """Return the range that has an offset."""
        at = bisect_right(self.starts, offset) - 1
        found = self.ranges[at] if at >= 0 else None
        return found if found is not None and offset < found.next_offset else None


class PartitionViews:
    """The views of a broker, loaded on demand and refreshed."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        storage: SegmentCatalog,
        log: Log,
        node_id: int,
        copies: FollowedLogs,
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._storage = storage
        self._log = log
        self._node_id = node_id
        self._copies = copies
        self._views: dict[int, View] = {}  # in the order of last use
        self._rows = 0
        self._loading: dict[int, asyncio.Task[None]] = {}

    def find(self, number: int, offset: int) -> Partition:
        """Return the range of a partition that has an offset. Raises NotLoaded if the partition is
        to be loaded first, KafkaError(NOT_LEADER_OR_FOLLOWER) if the offset cannot be read here."""
        view = self._views.pop(number, None)
        if view is None:
            raise NotLoaded(number)
        self._views[number] = view
        age_s = self._env.clock.monotonic() - view.loaded_s
        if age_s >= MAX_AGE_S:
            raise NotLoaded(number)
        # The copy first: it is on this machine, and the bucket is not.
        found = self._copies.find(number, offset) or view.at(offset)
        if found is None:
            if age_s >= MIN_AGE_S:
                raise NotLoaded(number)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found

    def drop(self, partition: LoadedPartition) -> None:
        """Have a view loaded again, of which this range could not be read."""
        view = self._views.get(partition.number)
        if view is not None and partition in view.ranges:
            self._forget(partition.number)

    async def load(self, numbers: Collection[int]) -> None:
        """Load partitions, again if they are loaded. Never raises: one that cannot be loaded has no
        offsets for MIN_AGE_S."""
        wanted = [number for number in numbers if number not in self._loading]
        if wanted:
            task = self._env.spawn(self._load(wanted), "load views of partitions")
            self._loading.update(dict.fromkeys(wanted, task))
        tasks = {self._loading[number] for number in numbers}
        if tasks:
            await asyncio.wait(tasks)

    async def _load(self, numbers: Sequence[int]) -> None:
        made: dict[int, View] = {}
        try:
            # First: a row that is read later has what is not in the copy any more.
            indexed = await self._copies.load(numbers)
            for at in range(0, len(numbers), LOAD_AT_ONCE):
                for row in await self._storage.load_partitions(numbers[at : at + LOAD_AT_ONCE]):
                    self._copies.take_row(row, is_later=row.number in indexed)
                    await self._learn(row)
                    view = await self._view(row)
                    if view is not None:
                        made[row.number] = view
        except (KafkaError, OSError) as failure:
            logger.warning(
                "cannot read the rows of partitions that other brokers lead, their clients are "
                "sent to the leaders: %s",
                failure,
            )
        finally:
            now_s = self._env.clock.monotonic()
            for number in numbers:
                self._keep(number, made.get(number) or View(now_s, [], []))
                del self._loading[number]

    def _keep(self, number: int, view: View) -> None:
        self._forget(number)
        self._views[number] = view
        self._rows += view.rows
        while len(self._views) > 1 and (self._rows > MAX_ROWS or len(self._views) > MAX_VIEWS):
            self._forget(next(iter(self._views)))

    def _forget(self, number: int) -> None:
        view = self._views.pop(number, None)
        if view is not None:
            self._rows -= view.rows

    async def _learn(self, row: PartitionRow) -> None:
        """Find the segments of the uploaded part. Those that were known without an object are read
        again: they have one now, or were replaced."""
        store = self._log.segments.store
        uploaded = [each for each in row.mappings if each.base_offset < row.commit_offset]
        await store.learn(uploaded)
        ids = {each.segment_id for each in uploaded}
        old = [each for each in ids if (found := store.others.get(each)) and not found.row.object]
        if old:
            rows = {each.id: each for each in await self._storage.segments_by_id(sorted(old))}
            for segment_id in old:
                store.renew_other(segment_id, rows.get(segment_id))

    async def _view(self, row: PartitionRow) -> View | None:
        """Return the view of a row; None if there is nothing to read."""
        location = self._catalog.locate(row.number)
        if location is None:
            return None
        if (
            self._log.loader.configs.config_of_topic(location.topic_id).tier_level
            is TierLevel.DISABLE
        ):
            return None
        log_start, end = bounds(row)
        loaded_s = self._env.clock.monotonic()
        ranges: list[Partition] = []
        part: list[SegmentRange] = []
        for mapping in row.mappings:
            if mapping.end_offset <= log_start or mapping.base_offset >= end:
                continue
            if self._readable(mapping):
                part.append(mapping)
            elif part:
                ranges.append(await self._range(row, location, part, log_start, end))
                part = []
            await self._env.slices.give_way()
        if part:
            ranges.append(await self._range(row, location, part, log_start, end))
        starts = [max(log_start, each.segments.base[0]) for each in ranges]
        return View(loaded_s, ranges, starts, sum(len(each.segments) for each in ranges))

    def _readable(self, mapping: SegmentRange) -> bool:
        segment = self._log.segments.store.find(mapping.segment_id)
        if segment is None:
            return False
        row = segment.row
        if row.object and self._log.segments.remote.cold is not None:
            return True
        mine = row.node_id == self._node_id
        return row.local and (mine or share_folder(self._catalog, self._node_id, row.node_id))

    async def _range(
        self,
        row: PartitionRow,
        location: Location,
        mappings: Sequence[SegmentRange],
        log_start: int,
        end: int,
    ) -> Partition:
        """Return the partition of adjacent mappings."""
        loader = self._log.loader
        partition = Partition(
            self._log.commit_log,
            row.number,
            location.topic_id,
            location.topic,
            location.index,
            location.leader_epoch,
            loader.configs.config_of_topic(location.topic_id),
            loader.traffic.counters_of_topic(location.topic),
        )
        for at in range(0, len(mappings), ROWS_AT_ONCE):
            partition.segments.splice(at, at, mappings[at : at + ROWS_AT_ONCE])
            await self._env.slices.give_way()
        limit_to_segments(partition, row.checkpoint, log_start, min(end, mappings[-1].end_offset))
        return partition


def bounds(row: PartitionRow) -> tuple[int, int]:
    """Return log start and end of what is uploaded and belongs to no open transaction."""
    state = row.checkpoint
    if state is None:
        return 0, row.commit_offset
    opened: Iterable[int] = (each.open_offset for each in state.producers)
    end = min([row.commit_offset, *(offset for offset in opened if offset >= 0)])
    return state.log_start, end
