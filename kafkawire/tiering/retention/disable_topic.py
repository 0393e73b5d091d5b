"""Topics that are removed from the remote tier: `remote.log.delete.on.disable`.

Records that are only in the tier are discarded: the log start moves to the start of the local log
(as in Kafka, KIP-950), in SQL and then in the manifest. Objects of local segments are released,
unless they contain a topic that stays in the tier. The usual deletion of objects follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from kafkawire.log.manager import Log
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.remote_tier import local_log_start
from kafkawire.metadata.catalog import Catalog, TopicInfo
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog, SegmentRow
from kafkawire.plural import count
from kafkawire.tiering.upload.scheduler import Dispatcher

logger = logging.getLogger(__name__)

DELETE_ON_DISABLE = "remote.log.delete.on.disable"
TOPICS_AT_ONCE = 1000
"""Topics checked per event-loop iteration: a millisecond."""
PARTITIONS_AT_ONCE = 500
SEGMENTS_AT_ONCE = 50


class TopicDisabler:
    """Removes disabled topics from the remote tier."""

    def __init__(
        self,
        log: Log,
        storage: SegmentCatalog,
        catalog: Catalog,
        dispatcher: Dispatcher,
        grace_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._storage = storage
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._grace_ms = grace_ms
        self._noted: dict[bytes, TopicInfo] = {}  # by id

    def note_changed(self, info: TopicInfo) -> None:
        """Note a topic with changed settings; the next `run` checks it."""
        self._noted[info.id] = info

    def remove_topic(self, topic_id: bytes) -> None:
        self._noted.pop(topic_id, None)

    async def find(self) -> None:
        """After a start, find topics that a crash may have left partly disabled."""
        for done, topic_id in enumerate(list(self._catalog.by_id), 1):
            if topic_id in self._catalog.by_id:
                configs = self._catalog.by_id.facts_of(topic_id).configs
                if configs.get(DELETE_ON_DISABLE) == "true":
                    self.note_changed(self._catalog.by_id[topic_id])
            if done % TOPICS_AT_ONCE == 0:
                await self._log.env.slices.pause()

    async def run(self) -> bool:
        """Disable the noted topics; return False if there was none. Raises the storage's errors;
        another call continues."""
        busy = bool(self._noted)
        for topic_id, info in list(self._noted.items()):
            numbers = [row.number for row in info.partitions if self._leaves(row.number)]
            done = True
            for at in range(0, len(numbers), PARTITIONS_AT_ONCE):
                done &= await self._disable(info.name, numbers[at : at + PARTITIONS_AT_ONCE])
            if done and self._noted.get(topic_id) is info:
                del self._noted[topic_id]
        return busy

    def _leaves(self, number: int) -> bool:
        config = self._log.loader.config_of(number)
        return config is not None and not config.tiered and config.tier_deletes

    async def _disable(self, topic: str, numbers: Iterable[int]) -> bool:
        """Disable some partitions of a topic; return False if uploads of it are in progress."""
        await self._log.loader.load(numbers)
        partitions = [
            partition
            for number in numbers
            if (partition := self._log.partitions.get(number)) is not None
        ]
        ids = {segment for partition in partitions for segment in partition.segments.segment}
        # A change whose answer was lost may have marked a segment as remote only.
        await self._log.segments.swapper.refresh(ids)
        starts = self._find_starts(partitions)
        # First in SQL: from then on no reader requests what is only in the tier.
        if starts:
            logger.info(
                "topic %s is no longer tiered: moving the log start offset of %s",
                topic,
                count(len(starts), "partition"),
            )
            await self._log.commit_log.save_log_starts(starts)
        await self._release(sorted(ids))
        # Not if local retention has removed files meanwhile.
        done = not self._find_starts(partitions)
        return done and self._dispatcher.candidates.keys().isdisjoint(ids)

    def _find_starts(self, partitions: Iterable[Partition]) -> dict[int, int]:
        """Return the starts of the local logs of those that begin in the tier, by number."""
        store = self._log.segments.store
        return {
            partition.number: start
            for partition in partitions
            if (start := local_log_start(partition, store)) > partition.log_start
        }

    async def _release(self, ids: list[int]) -> None:
        for at in range(0, len(ids), SEGMENTS_AT_ONCE):
            some = ids[at : at + SEGMENTS_AT_ONCE]
            # The lock of all segment changes keeps local retention from removing files meanwhile.
            await self._log.segments.swapper.update(partial(self._release_objects, some))

    async def _release_objects(self, ids: list[int]) -> list[SegmentRow]:
        own = self._log.segments.store.by_id
        found = await self._storage.segments_by_id(ids)
        rows = {
            row.id: row
            for row in found
            if row.id in own and row.object and row.local and row.state == LIVE
        }
        for mapping in await self._storage.segment_mappings(sorted(rows)):
            # It is shared with a partition that stays in the tier.
            if not self._leaves(mapping.number):
                rows.pop(mapping.segment_id, None)
        if not rows:
            return found
        after_ms = self._log.env.clock.now_ms() + max(1, self._grace_ms())
        await self._storage.delete_objects([row.object for row in rows.values()], after_ms)
        return await self._storage.segments_by_id(ids)
