"""The deliverers of all schedule partitions that this broker leads.

Started by the first schedule topic. A deliverer begins when its state is loaded, and ends when the
topic is deleted or is no schedule topic any more; if a commit of its state fails, it begins again
with what is committed. It also ends when this broker loses the schedule partition, or that of its
state, and begins when it leads both: what is due meanwhile is delivered then.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kafkawire.codec import java_hash
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.coordination.service import CoordinatorService, InternalPartitions
from kafkawire.log.io.ports import Env
from kafkawire.schedules.check import check_batch
from kafkawire.schedules.configs import is_schedule
from kafkawire.schedules.deliverer import Deliverer
from kafkawire.schedules.states import ScheduleKey, ScheduleState, StateCoordinator
from kafkawire.schedules.targets import GetPartition, ScheduleTargets
from kafkawire.schedules.waiting import FILE_NAME, IN_MEMORY, WaitingIndex

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog, TopicInfo

logger = logging.getLogger(__name__)

STATE_TOPIC = "__schedule_state"
RETRY_S = 1.0
"""Pause before another attempt to start deliverers: what failed is a load or an SQL transaction."""


class LedStates:
    """The states of one schedule partition, as long as this broker leads it: a step that begins
    after it was lost is refused."""

    def __init__(self, coordinator: StateCoordinator, partition: Partition) -> None:
        self.coordinator = coordinator
        self.partition = partition

    @property
    def usable(self) -> bool:
        """Whether partition and states are those of this broker now."""
        active = self.coordinator.phase is CoordinatorPhase.ACTIVE
        return active and not self.partition.removed

    def get(self, key: ScheduleKey) -> ScheduleState | None:
        return self.coordinator.get(key)

    def store(self, key: ScheduleKey, state: ScheduleState | None) -> ErrorCode | None:
        # Another broker delivers by now: a step that begins after that would deliver twice.
        if self.partition.removed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.coordinator.store(key, state)


class ScheduleService(CoordinatorService[StateCoordinator]):
    """All schedules of this broker. `internal`: the partitions of `__schedule_state`, which it
    creates if need be; `get_partition`: any partition, in memory."""

    topic = STATE_TOPIC

    def __init__(
        self,
        env: Env,
        folder: str,
        commit_log: CommitLog,
        catalog: Catalog,
        internal: InternalPartitions,
        targets: ScheduleTargets,
        get_partition: GetPartition,
        node_id: int,
    ) -> None:
        super().__init__(env, catalog, internal)
        self._folder = folder
        self._commit_log = commit_log
        self._targets = targets
        self._get_partition = get_partition
        self._node_id = node_id
        self._index = WaitingIndex(env.fs.native(f"{folder}/{FILE_NAME}") or IN_MEMORY)
        self._index_open = False
        self._changing = asyncio.Lock()
        self.deliverers: dict[ScheduleKey, Deliverer] = {}
        self._states: dict[ScheduleKey, LedStates] = {}

    # -- life -----------------------------------------------------------------------------

    def new_coordinator(self, partition: Partition) -> StateCoordinator:
        return StateCoordinator(
            self.env, partition, self._commit_log, f"{self._folder}/schedules",
            self._note_loaded, self._note_lost,
        )  # fmt: skip

    partition_of = staticmethod(java_hash.partition_of)  # of the id of a topic, in hexadecimal

    async def close(self) -> None:
        """End all deliveries, then the coordinators. Calling it again does nothing."""
        self._closed = True
        async with self._changing:
            await self._stop(list(self.deliverers))
        await super().close()
        if self._index_open:
            self._index_open = False
            await self.env.offload.submit("files", self._index.close)

    def _note_loaded(self, coordinator: StateCoordinator) -> None:
        self.env.spawn(self.update(), "start deliverers")

    def _note_lost(self, coordinator: StateCoordinator) -> None:
        lost = [key for key, states in self._states.items() if states.coordinator is coordinator]
        if lost and not self._closed:
            self.env.spawn(self._restart(lost), "restart deliverers")

    def _coordinator_of(self, key: ScheduleKey) -> StateCoordinator | None:
        return self.find_coordinator(key[0].hex())

    async def check(
        self, partition: Partition, batch: memoryview, may_write: Callable[[str], bool]
    ) -> None:
        """Check the records of a batch for a schedule topic; see check_batch."""
        await check_batch(self.env, partition, batch, self._targets, may_write)

    # -- changes --------------------------------------------------------------------------

    async def resign(self, indexes: Iterable[int]) -> None:
        """As CoordinatorService.resign; without indexes if only partitions of schedule topics were
        lost. The deliverers of lost partitions end."""
        await super().resign(indexes)
        self._again()

    async def lead(self, indexes: Iterable[int]) -> None:
        """As CoordinatorService.lead; without indexes if only partitions of schedule topics were
        gained. Their deliverers begin."""
        await super().lead(indexes)
        self._again()

    async def update(self) -> None:
        """Have a deliverer for each schedule partition that is led here, and no others."""
        async with self._changing:
            if self._closed:
                return
            wanted: dict[ScheduleKey, str] = {}
            for topic_id, configs in list(self.catalog.list_configured()):
                if is_schedule(configs):
                    info = self.catalog.by_id[topic_id]
                    for row in info.partitions:
                        if row.leader == self._node_id:
                            wanted[topic_id, row.index] = info.name
            await self._stop(
                [key for key in self.deliverers if key not in wanted or not self._current(key)]
            )
            for key, name in wanted.items():
                coordinator = self._coordinator_of(key)
                loaded = coordinator and coordinator.phase is CoordinatorPhase.ACTIVE
                if coordinator is not None and loaded and key not in self.deliverers:
                    if not await self._open_index():
                        return
                    await self._start(key, name, coordinator)

    async def _open_index(self) -> bool:
        """Return whether the index is open. If its file cannot be opened, that is tried again."""
        try:
            if not self._index_open:
                # Not in the pool of the log's files, which would wait: all of it is read.
                await self.env.offload.submit("read", self._index.open)
                self._index_open = True
        except (OSError, sqlite3.OperationalError) as failure:
            logger.error(
                "schedule topics deliver nothing, opening their index is tried again every second: "
                "%s", failure,
            )  # fmt: skip
            self.env.call_later(RETRY_S, self._again)
        return self._index_open

    def _current(self, key: ScheduleKey) -> bool:
        """Return whether a deliverer works with the partition and the states of now."""
        states = self._states[key]
        return states.usable and states.coordinator is self._coordinator_of(key)

    async def _start(self, key: ScheduleKey, name: str, coordinator: StateCoordinator) -> None:
        try:
            partition = await self._get_partition(name, key[1])
        except KafkaError as error:
            logger.error("%s-%d: cannot deliver, it is tried again: %s", name, key[1], error)
            self.env.call_later(RETRY_S, self._again)
            return
        states = LedStates(coordinator, partition)
        deliverer = Deliverer(
            self.env, partition, self._commit_log, states, self._index, self._targets
        )
        self._states[key] = states
        self.deliverers[key] = deliverer
        deliverer.start()

    def _again(self) -> None:
        if not self._closed:
            self.env.spawn(self.update(), "start deliverers")

    async def _restart(self, keys: Sequence[ScheduleKey]) -> None:
        async with self._changing:
            await self._stop(keys)
        await self.update()

    async def _stop(self, keys: Collection[ScheduleKey]) -> None:
        for key in keys:
            deliverer = self.deliverers.pop(key, None)
            self._states.pop(key, None)
            if deliverer is not None:
                await deliverer.close()

    async def topic_removed(self, info: TopicInfo) -> None:
        await self.update()
        for row in info.partitions:
            coordinator = self._coordinator_of((info.id, row.index))
            if coordinator is not None and coordinator.get((info.id, row.index)) is not None:
                coordinator.store((info.id, row.index), None)
            if self._index_open:
                await self.env.offload.submit(
                    "files", partial(self._index.delete_partition, row.number)
                )
