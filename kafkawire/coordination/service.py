"""The coordinators of all partitions of an internal topic that this broker leads.

A group or transactional id belongs to one partition of the topic, by the hash of its name. The
topic is created by the first search for a coordinator. After a start its partitions are loaded in
the background; requests get COORDINATOR_LOAD_IN_PROGRESS until then. Names of partitions led by
other brokers get NOT_COORDINATOR.

Leadership changes while the broker runs (`resign`, `lead`). Changes wait for nothing, are numbered,
and what was found before a change does not count after it. An index never has two coordinators.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.coordinator import (
    CLOSE_S,
    DEFECT_RETRY_MS,
    RETRY_MS,
    CoordinatorPhase,
    PartitionCoordinator,
)
from kafkawire.log.io.ports import Env
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog, PartitionInfo

logger = logging.getLogger(__name__)

CoordinatorT = TypeVar("CoordinatorT", bound=PartitionCoordinator[Any])
InternalPartitions = Callable[[], Awaitable[Sequence["Partition | None"]]]
"""Returns the partitions of the topic, creating it if needed; None: led by another broker. Raises
KafkaError if it cannot be created."""


@dataclass(eq=False, slots=True)
class Gained:
    """An index that was gained and has no coordinator yet. `serial`: of the change that gained it;
    `deleted`: names of topics that were deleted since."""

    serial: int
    deleted: dict[str, None] = field(default_factory=dict)


class CoordinatorService(ABC, Generic[CoordinatorT]):
    """The coordinators by partition; `topic`: the internal topic. `gained`: indexes that this
    broker leads and for which a coordinator is still to be created."""

    topic: ClassVar[str]

    def __init__(self, env: Env, catalog: Catalog, internal: InternalPartitions) -> None:
        self.env = env
        self.catalog = catalog
        self.coordinators: list[CoordinatorT | None] = []
        self.gained: dict[int, Gained] = {}
        self._internal = internal
        self._opening = asyncio.Lock()
        self._opened = False
        self._closed = False
        self._serial = 0  # incremented by each change of leadership
        self._resigned: dict[int, int] = {}  # index -> serial of its last resignation
        self._creating: asyncio.Task[None] | None = None

    @abstractmethod
    def new_coordinator(self, partition: Partition) -> CoordinatorT:
        """Return a coordinator that is not started."""

    @staticmethod
    @abstractmethod
    def partition_of(name: str, partitions: int) -> int:
        """Return the partition that a group or transactional id belongs to."""

    # -- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to load what exists in the background; returns immediately."""
        if self.topic in self.catalog.by_name:
            await self.open()

    async def open(self) -> None:
        """Create the topic if it does not exist, and a coordinator for each partition, in slices.
        Raises KafkaError if the topic cannot be created."""
        if self._opened or self._closed:
            return
        async with self._opening:
            if not self._opened and not self._closed:
                await self._open()

    async def _open(self) -> None:
        # Read before the wait, during which leadership may change.
        existed, since = self.topic in self.catalog.by_name, self._serial
        found = await self._create_coordinators(existed=existed)
        for index, coordinator in enumerate(found):
            if coordinator is not None and self._resigned.get(index, 0) > since:
                found[index] = None  # meanwhile
                coordinator.resign()
            elif coordinator is not None:
                self.gained.pop(index, None)
        self._opened = True
        self.coordinators = found
        for coordinator in self.list_led() if existed else ():
            if not self._closed and self._at(coordinator.partition.index) is coordinator:
                coordinator.start()  # now, so that no deletion of a topic is missed
                await self.env.slices.give_way()
        if self._closed:  # meanwhile
            await self.close()

    async def _create_coordinators(self, *, existed: bool) -> list[CoordinatorT | None]:
        found: list[CoordinatorT | None] = []
        try:
            for partition in await self._internal():
                found.append(None if partition is None else self.new_coordinator(partition))
                if not existed and (added := found[-1]) is not None:
                    added.begin_empty()
                await self.env.slices.give_way()
        # Also when it is cancelled: `close` does not know them, as they are not in `coordinators`.
        except BaseException:
            for made in filter(None, found):
                made.resign()
            raise
        return found

    async def close(self) -> None:
        """Answer all waiting requests; afterwards the state can be loaded again. Call while the log
        accepts writes. Waits up to CLOSE_S for commits. Another call has no effect."""
        self._closed = True
        self.gained.clear()
        if self._creating is not None:
            self._creating.cancel()
        # One deadline for all of them: while the log commits nothing, each would wait for as long.
        deadline = self.env.clock.monotonic() + CLOSE_S
        for coordinator in self.list_led():
            await coordinator.close(max(deadline - self.env.clock.monotonic(), 0.0))

    # -- changes of leadership ------------------------------------------------------------

    async def resign(self, indexes: Iterable[int]) -> None:
        """End the coordinators of partitions that this broker does not lead any more: they write
        nothing more, and their clients are answered NOT_COORDINATOR. Call after the catalog has the
        new leaders and the log has unloaded the partitions."""
        # Waits for no disk and no lock: the caller holds the lock of the topic service, for which
        # `open` may wait. A snapshot that is being written is written before the next coordinator
        # reads it: both use the pool "files", which runs one call at a time.
        ended: list[CoordinatorT] = []
        for index in indexes:
            self._serial += 1
            self._resigned[index] = self._serial
            self.gained.pop(index, None)
            coordinator = self._at(index)
            if coordinator is not None:
                self.coordinators[index] = None
                ended.append(coordinator)
        try:
            while ended:
                ended.pop().resign()
                await self.env.slices.give_way()
        # Cancelled: none of them may write any more.
        finally:
            for coordinator in ended:
                coordinator.resign()

    async def lead(self, indexes: Iterable[int]) -> None:
        """Create and load the coordinators of partitions that this broker leads from now on, in the
        background; until then requests get COORDINATOR_LOAD_IN_PROGRESS. Call after the catalog has
        the new leaders and the log can load the partitions; also for all partitions of a topic that
        another broker has created. One whose epoch has changed must be resigned before."""
        for index in indexes:
            if self._closed:
                return
            if self._at(index) is None:  # else it was created with the catalog's new leaders
                self._serial += 1
                self.gained[index] = Gained(self._serial)
        if self.gained and (self._creating is None or self._creating.done()):
            self._creating = self.env.spawn(self._create_gained(), f"lead {self.topic}")

    async def _create_gained(self) -> None:
        logged = False
        while self.gained and not self._closed:
            try:
                await self.open()
                since = self._serial
                await self._create(await self._internal(), since)
                waiting = [each for each in self.gained.values() if each.serial <= since]
                delay_ms = RETRY_MS if waiting else 0
            except (KafkaError, OSError) as failure:
                if not logged:
                    logger.error(
                        "%s: %s gained by this broker cannot be loaded, it is retried every "
                        "second; requests get COORDINATOR_LOAD_IN_PROGRESS: %s",
                        self.topic, count(len(self.gained), "partition"), failure,
                    )  # fmt: skip
                logged, delay_ms = True, RETRY_MS
            except Exception:
                logger.exception("%s: loading gained partitions failed", self.topic)
                delay_ms = DEFECT_RETRY_MS
            if delay_ms:
                await self.env.sleep(delay_ms / 1000)

    async def _create(self, partitions: Sequence[Partition | None], since: int) -> None:
        """Create the coordinators of what was gained before the change `since`; `partitions` are
        those that the broker led after it."""
        for index, gained in list(self.gained.items()):
            if gained.serial > since or self.gained.get(index) is not gained:
                continue  # `partitions` may be older; or resigned meanwhile
            partition = partitions[index] if index < len(partitions) else None
            if partition is not None and partition.removed:
                continue  # unloaded again, it is loaded by the next attempt
            if partition is not None and self._at(index) is None:
                coordinator = self.new_coordinator(partition)
                self.coordinators[index] = coordinator
                coordinator.start(gained=True)
            del self.gained[index]
            await self.env.slices.give_way()

    # -- finding --------------------------------------------------------------------------

    async def coordinator_of(self, name: str) -> PartitionInfo:
        """Return the partition that coordinates a name; its `leader` is the coordinator's node id.
        Creates the topic if needed. Raises KafkaError if that fails."""
        await self.open()
        partitions = self.catalog.by_name[self.topic].partitions
        return partitions[self.partition_of(name, len(partitions))]

    def list_led(self) -> list[CoordinatorT]:
        return [coordinator for coordinator in self.coordinators if coordinator is not None]

    def find_coordinator(self, name: str) -> CoordinatorT | None:
        """Return the coordinator of a name; None if this broker has none. Hot."""
        if not self.coordinators:
            return None
        return self.coordinators[self.partition_of(name, len(self.coordinators))]

    def absence(self, name: str) -> ErrorCode:
        if self._closed:
            return CoordinatorPhase.CLOSED.value
        if self.gained:
            partitions = len(self.catalog.by_name[self.topic].partitions)
            return self.absence_at(self.partition_of(name, partitions))
        return ErrorCode.NOT_COORDINATOR

    def absence_at(self, index: int) -> ErrorCode:
        if self._closed:
            return CoordinatorPhase.CLOSED.value
        gained = index in self.gained
        return CoordinatorPhase.LOADING.value if gained else ErrorCode.NOT_COORDINATOR

    def _at(self, index: int) -> CoordinatorT | None:
        return self.coordinators[index] if 0 <= index < len(self.coordinators) else None
