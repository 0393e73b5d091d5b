"""Starts the schedules of a broker when there is a schedule topic: others do not import them.

Registered with the log for changes of topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.schedules.configs import is_schedule

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog, TopicInfo
    from kafkawire.schedules.service import ScheduleService

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause before the service is opened again, if its topic could not be created."""


class ScheduleStarter:
    """Opens the service at the first schedule topic, and has it follow changes of topics.
    `make` creates the service, after importing it in a thread. `service` is None before that.
    `topic`: of the states."""

    topic = "__schedule_state"

    def __init__(
        self, env: Env, catalog: Catalog, make: Callable[[], Awaitable[ScheduleService]]
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._make = make
        self._opening = asyncio.Lock()
        self._closed = False
        self.service: ScheduleService | None = None

    def start(self) -> None:
        """Start to deliver in the background, if there are schedule topics."""
        for _, configs in self._catalog.list_configured():
            if is_schedule(configs):
                self._update()
                return

    async def close(self) -> None:
        """End all deliveries, while the log takes writes. Another call has no effect."""
        self._closed = True
        async with self._opening:
            if self.service is not None:
                await self.service.close()

    async def check(
        self, partition: Partition, batch: memoryview, may_write: Callable[[str], bool]
    ) -> None:
        """Check the records of a batch for a schedule topic; `may_write`: whether the producer may
        write to a target. Raises KafkaError as kafkawire.schedules.check.check_batch."""
        async with self._opening:
            if self.service is None:
                self.service = await self._make()
        await self.service.check(partition, batch, may_write)

    async def resign(self, indexes: Collection[int]) -> None:
        """End what delivered with partitions that this broker does not lead any more. `indexes`: of
        those of the topic of states; empty if only partitions of schedule topics were lost."""
        if self.service is not None:
            await self.service.resign(indexes)

    async def lead(self, indexes: Collection[int]) -> None:
        """Begin to deliver partitions led from now on; `indexes` as of `resign`."""
        if self.service is not None:
            await self.service.lead(indexes)
        self.start()

    def _update(self) -> None:
        if not self._closed:
            self._env.spawn(self._open_and_update(), "update schedules")

    async def _open_and_update(self) -> None:
        async with self._opening:
            if self._closed:
                return
            if self.service is None:
                self.service = await self._make()
            try:
                await self.service.open()
            except KafkaError as error:
                logger.error(
                    "schedule topics deliver nothing, opening %s is tried again every second: %s",
                    self.service.topic, error,
                )  # fmt: skip
                self._env.call_later(RETRY_S, self._update)
                return
        await self.service.update()

    # -- changes of the log (kafkawire.log.partition.hooks.LogListener) ---------------------

    def segments(self, ids: Collection[int]) -> None:
        """Ignore changes of segments."""

    def log_starts(self, numbers: Collection[int]) -> None:
        """Ignore changes of log starts."""

    def topics(self, infos: Collection[TopicInfo]) -> None:
        """Start the partitions of new schedule topics, or new partitions of them."""
        if any(is_schedule(info.configs) for info in infos):
            self._update()

    def topic_altered(self, info: TopicInfo) -> None:
        if self.service is not None or is_schedule(info.configs):
            self._update()

    def topic_removed(self, info: TopicInfo) -> None:
        if self.service is not None and is_schedule(info.configs):
            self._env.spawn(self.service.topic_removed(info), "forget a schedule")

    def defaults(self) -> None:
        """Ignore defaults: they make no topic a schedule topic."""
