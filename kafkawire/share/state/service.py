"""The share coordinators of this broker: one for each partition of `__share_group_state` it leads.

A share partition belongs to the partition of the topic that the hash of its key gives, as in Kafka.
A task deletes states of deleted topics, writes cold ones again, and prunes the logs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec import java_hash
from kafkawire.codec.types import uuid_text
from kafkawire.coordination.service import CoordinatorService, InternalPartitions
from kafkawire.log.io.ports import Env
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.coordinator import ShareStateCoordinator
from kafkawire.share.state.machine import StateAnswer, StateRequest, StateSettings

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog

STATE_TOPIC = "__share_group_state"


class ServiceSettings(StateSettings, Protocol):
    """The settings of share coordinators, and how often their task runs; names are Kafka's."""

    @property
    def share_coordinator_state_topic_prune_interval_ms(self) -> int: ...
    @property
    def share_coordinator_cold_partition_snapshot_interval_ms(self) -> int: ...


def coordinator_key(key: SharePartitionKey) -> str:
    """Return the key of FindCoordinator for a share partition."""
    return f"{key.group_id}:{uuid_text(key.topic_id)}:{key.partition}"


class ShareStateService(CoordinatorService[ShareStateCoordinator]):
    """All share coordinators of this broker. `internal` returns the partitions of the state topic,
    creating it if needed; None: led by another broker."""

    topic = STATE_TOPIC

    def __init__(
        self,
        env: Env,
        settings: ServiceSettings,
        folder: str,
        commit_log: CommitLog,
        internal: InternalPartitions,
        catalog: Catalog,
    ) -> None:
        super().__init__(env, catalog, internal)
        self._settings = settings
        self._folder = f"{folder}/share"
        self._commit_log = commit_log
        self._tasks: list[asyncio.Task[None]] = []

    def new_coordinator(self, partition: Partition) -> ShareStateCoordinator:
        return ShareStateCoordinator(
            self.env, self._settings, self.catalog, partition, self._commit_log, self._folder
        )

    partition_of = staticmethod(java_hash.partition_of)

    async def open(self) -> None:
        """Have a coordinator for each partition, and the tasks that clean. Raises KafkaError if the
        topic cannot be created."""
        await super().open()
        if not self._tasks and not self._closed:
            self._tasks = [
                self.env.spawn(self._clean(), "clean share states"),
                self.env.spawn(self._prune(), "prune share states"),
            ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await super().close()

    def handle_request(self, request: StateRequest) -> asyncio.Future[StateAnswer] | None:
        """Have the coordinator of a share partition decide on a request; None: this broker has
        none. Hot."""
        coordinator = self.find_coordinator(coordinator_key(request.key))
        return None if coordinator is None else coordinator.handle_request(request)

    def topic_deleted(self, topic_id: bytes) -> None:
        """Delete the states of a topic. A coordinator that is loading does that when it cleans."""
        for coordinator in self.list_led():
            coordinator.delete_topics([topic_id])

    async def _clean(self) -> None:
        while True:
            interval_ms = self._settings.share_coordinator_cold_partition_snapshot_interval_ms
            await self.env.sleep(interval_ms / 1000)
            for coordinator in self.list_led():
                try:
                    await coordinator.clean(interval_ms)
                # A defect in one must not end the task of all.
                except Exception:
                    coordinator.appender.log_defect("cleaning share states")

    async def _prune(self) -> None:
        while True:
            interval_ms = self._settings.share_coordinator_state_topic_prune_interval_ms
            await self.env.sleep(interval_ms / 1000)
            for coordinator in self.list_led():
                try:
                    await coordinator.prune()
                except Exception:
                    coordinator.appender.log_defect("pruning share states")
