"""The remote tier of one broker: its parts, started and ended in order.

Made by the broker where `tier.url` is set. A start never fails because of the tier: what needs the
bucket is attached in the background, tried again for as long as it takes, and `state` says how that
stands. Then what a crash left is cleaned up, segments are uploaded, objects nobody needs removed.
Cold reads need no attached bucket: they begin at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from kafkawire.codec.configs import BrokerConfig
from kafkawire.metadata.catalog import Catalog
from log.env import Env
from log.manager import Log
from offsets.storage import OffsetStorage
from tiering.store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Collection

    from kafkawire.metadata.catalog import TopicInfo

logger = logging.getLogger(__name__)


class Tiering:
    """See the module. Members that others reach: `store`, `log`, `storage`, `catalog`, `config`,
    `node_id`, `cluster_id`; further parts as they are built."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        log: Log,
        storage: OffsetStorage,
        catalog: Catalog,
        store: ObjectStore,
        node_id: int,
        cluster_id: str,
    ) -> None:
        self.env = env
        self.config = config
        self.log = log
        self.storage = storage
        self.catalog = catalog
        self.store = store
        self.node_id = node_id
        self.cluster_id = cluster_id
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Begin. Never fails because of the tier."""
        hooks = self.log.hooks
        hooks.segments = self._segments_changed
        hooks.log_starts = self._log_starts_moved
        hooks.topics = self._topics_changed
        hooks.topic_removed = self._topic_removed
        hooks.defaults = self._defaults_changed

    async def close(self) -> None:
        """End uploads and everything else; the log is open still. Again: does nothing."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()

    def _segments_changed(self, ids: Collection[int]) -> None:
        """See log.hooks."""

    def _log_starts_moved(self, numbers: Collection[int]) -> None:
        """See log.hooks."""

    def _topics_changed(self, infos: Collection[TopicInfo]) -> None:
        """See log.hooks."""

    def _topic_removed(self, info: TopicInfo) -> None:
        """See log.hooks."""

    def _defaults_changed(self) -> None:
        """See log.hooks."""
