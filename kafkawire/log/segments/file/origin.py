"""Topic information for segment jobs, packed in slices.

Cutter, merger and cleaner request it for the partitions of a job.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.codec.segment.format import TopicOrigin
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import JobOrigin, pack
from kafkawire.metadata.catalog import Catalog

AT_ONCE = 128
"""Partitions looked up per event-loop iteration: half a millisecond."""


class Origins:
    """Topic information for segment jobs."""

    __slots__ = ("_catalog", "_env")

    def __init__(self, env: Env, catalog: Catalog) -> None:
        self._env = env
        self._catalog = catalog

    async def current_topics(self, numbers: Iterable[int]) -> JobOrigin:
        """Return the current topics of these partitions, without deleted ones."""
        wanted = list(numbers)
        reported: set[bytes] = set()
        packed: list[bytes] = []
        for at in range(0, len(wanted), AT_ONCE):
            locations = map(self._catalog.locate, wanted[at : at + AT_ONCE])
            ids = dict.fromkeys(location.topic_id for location in locations if location is not None)
            fresh = [topic_id for topic_id in ids if topic_id not in reported]
            reported.update(fresh)
            if fresh:
                packed += pack(map(self._topic, fresh))
            await self._env.slices.pause()
        return JobOrigin(self._catalog.cluster_id, packed)

    def _topic(self, topic_id: bytes) -> TopicOrigin:
        facts = self._catalog.by_id.facts_of(topic_id)
        return TopicOrigin(
            topic_id, facts.partitions, facts.created_ms, facts.internal, facts.configs
        )
