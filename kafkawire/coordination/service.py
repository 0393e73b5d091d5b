"""The coordinators of all partitions of an internal topic that this broker leads.

A group or transactional id belongs to one partition of the topic, by the hash of its name. The
topic is created by the first search for a coordinator. After a start its partitions are loaded in
the background; requests get COORDINATOR_LOAD_IN_PROGRESS until then. Names of partitions led by
other brokers get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.coordinator import CoordinatorPhase, PartitionCoordinator
from kafkawire.log.io.ports import Env

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog, PartitionInfo

CoordinatorT = TypeVar("CoordinatorT", bound=PartitionCoordinator[Any])
InternalPartitions = Callable[[], Awaitable[Sequence["Partition | None"]]]
"""Returns the partitions of the topic, creating it if needed; None: led by another broker. Raises
KafkaError if it cannot be created."""


class CoordinatorService(ABC, Generic[CoordinatorT]):
    """The coordinators by partition, created once; `topic`: the internal topic."""

    topic: ClassVar[str]

    def __init__(self, env: Env, catalog: Catalog, internal: InternalPartitions) -> None:
        self.env = env
        self.catalog = catalog
        self.coordinators: list[CoordinatorT | None] = []
        self._internal = internal
        self._opening = asyncio.Lock()
        self._closed = False

    @abstractmethod
    def new_coordinator(self, partition: Partition) -> CoordinatorT:
        """Return a coordinator that is not started."""

    @abstractmethod
    def partition_of(self, name: str, partitions: int) -> int:
        """Return the partition that a group or transactional id belongs to."""

    async def start(self) -> None:
        """Start to load what exists in the background; returns immediately."""
        if self.topic in self.catalog.by_name:
            await self.open()

    async def open(self) -> None:
        """Create the topic if it does not exist, and a coordinator for each partition, in slices.
        Raises KafkaError if the topic cannot be created."""
        if self.coordinators or self._closed:
            return
        async with self._opening:
            if self.coordinators or self._closed:
                return
            existed = self.topic in self.catalog.by_name
            found: list[CoordinatorT | None] = []
            for partition in await self._internal():
                found.append(None if partition is None else self.new_coordinator(partition))
                if not existed and (added := found[-1]) is not None:
                    added.begin_empty()
                await self.env.slices.give_way()
            self.coordinators = found
            for coordinator in self.led():
                if existed and not self._closed:
                    coordinator.start()  # now, so that no deletion of a topic is missed
                    await self.env.slices.give_way()
            if self._closed:  # meanwhile
                await self.close()

    async def close(self) -> None:
        """Answer all waiting requests; afterwards the state can be loaded again. Call while the log
        accepts writes. Another call has no effect."""
        self._closed = True
        for coordinator in self.led():
            await coordinator.close()

    async def coordinator_of(self, name: str) -> PartitionInfo:
        """Return the partition that coordinates a name; its `leader` is the coordinator's node id.
        Creates the topic if needed. Raises KafkaError if that fails."""
        await self.open()
        partitions = self.catalog.by_name[self.topic].partitions
        return partitions[self.partition_of(name, len(partitions))]

    def led(self) -> list[CoordinatorT]:
        """The coordinators of the partitions led by this broker."""
        return [coordinator for coordinator in self.coordinators if coordinator is not None]

    def find_coordinator(self, name: str) -> CoordinatorT | None:
        """Return the coordinator of a name; None if this broker has none. Hot."""
        if not self.coordinators:
            return None
        return self.coordinators[self.partition_of(name, len(self.coordinators))]

    def absence(self) -> ErrorCode:
        """Return the error for a name without a coordinator here."""
        return CoordinatorPhase.CLOSED.value if self._closed else ErrorCode.NOT_COORDINATOR
