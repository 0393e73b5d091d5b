"""The partitions in memory, and the loading of others at their first use.

A start loads those that have batches in the journals. Any other is created at its first use: at
once if it was created in this run (nothing can be stored of it), else from its rows in the offset
storage. The caller gets `NotLoaded`, awaits `load` and tries again; uses at the same time share one
load, and many numbers one round trip.

Shell; kafkawire.log.manager owns one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.damaged_ranges import Range, holes, lacks_rows
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.stored_rows import (
    RowVersion,
    begin_epoch,
    fill,
    has_all_rows,
    wrong_mappings,
)
from kafkawire.log.partition.topic_configs import TopicConfigs
from kafkawire.metadata.catalog import Catalog, Location
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metric_counters import Traffic
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog, SegmentRange
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog

logger = logging.getLogger(__name__)

LOAD_AT_ONCE = 200
"""Partitions of one round trip: filling them takes two milliseconds on the event loop."""
MAX_SHOWN = 5
"""Offset ranges named in one message."""
REFUSE_S = 0.5
"""How long requests get the error of a failed load before the storage is queried again: clients
retry several times a second, and a broken database should not be queried that often for each of
them."""


Learn = Callable[[Iterable[SegmentRange]], Awaitable[None]]
StoreStates = Callable[[list[PartitionCheckpoint]], Awaitable[None]]


class NotLoaded(Exception):
    """These partitions are led here and not in memory: `await Loader.load(numbers)`, then try
    again. Not a KafkaError: no client gets it."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(f"partitions {numbers} are not loaded")
        self.numbers = numbers


class _Refusal(NamedTuple):
    """Why a partition could not be loaded, until it is tried again. Each has its own time: failures
    of others do not prolong it."""

    until_s: float
    code: ErrorCode
    text: str


@dataclass(slots=True, eq=False)
class _Round:
    """Partitions that are loaded together, and the future of their callers."""

    done: asyncio.Future[None]
    numbers: set[int] = field(default_factory=set)


class LoadListener(Protocol):
    """Keeps track of the partitions in memory (the broker's table)."""

    def partition_loaded(self, partition: Partition) -> None:
        """Called when a partition is in memory from now on."""

    def leave(self, partition: Partition) -> None:
        """Called when a partition is not in memory any more, or was resigned."""


class Loader:
    """Loads partitions when they are first used; `partitions` by number are those in memory."""

    def __init__(
        self,
        commit_log: CommitLog,
        catalog: Catalog,
        storage: SegmentCatalog,
        node_id: int,
        config: BrokerConfig,
        rows: RowVersion,
        learn: Learn,
        store_states: StoreStates,
    ) -> None:
        self._learn, self._store_states = learn, store_states
        self.partitions: dict[int, Partition] = {}
        self._listeners: list[LoadListener] = []
        # Nothing is stored of partitions from this number on: they were created in this run.
        self.fresh_from = catalog.last_number() + 1
        self._rows = rows
        self.configs = TopicConfigs(catalog, config)
        self.traffic = Traffic()
        self._commit_log = commit_log
        self._env = commit_log.env
        self.slices = commit_log.env.slices
        self._catalog = catalog
        self._storage = storage
        self._node_id = node_id
        # Collects what callers need while another round is loaded.
        self._next: _Round | None = None
        self._running: _Round | None = None
        self._refused: dict[int, _Refusal] = {}
        # Partitions whose damaged rows have been logged.
        self._named: set[int] = set()

    def register(self, listener: LoadListener) -> None:
        """Report to `listener` each partition that is loaded or unloaded from now on."""
        self._listeners.append(listener)

    def get(self, number: int) -> Partition:
        """Return a partition that the catalog has and that is led here. NotLoaded; KafkaError while
        the storage cannot be read."""
        partition = self.partitions.get(number)
        if partition is not None:
            return partition
        # Nothing is stored of it: no query, unless another broker has led it.
        if number >= self.fresh_from and self._has_first_leader(number):
            partition = self.make(number)
            if partition is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._notify_listeners(partition)
            return partition
        refused = self._refused.get(number)
        if refused is not None:
            # A broken storage is not queried again for each retry of a client.
            if self._env.clock.monotonic() < refused.until_s:
                raise KafkaError(refused.code, refused.text)
            del self._refused[number]
        raise NotLoaded(number)

    async def load(self, numbers: Iterable[int]) -> None:
        """Load those of the partitions that exist and are led here. Raises what the storage raises;
        then `get` refuses them for a while."""
        rounds: dict[_Round, None] = {}
        for number in numbers:
            if number in self.partitions:
                continue
            if self._running is not None and number in self._running.numbers:
                rounds[self._running] = None
                continue
            if self._next is None:
                self._next = _Round(asyncio.get_running_loop().create_future())
            self._next.numbers.add(number)
            rounds[self._next] = None
            await self.slices.give_way()
        if self._next is not None and self._running is None:
            self._running, self._next = self._next, None
            self._env.spawn(self._go(), "load partitions")
        for one in rounds:
            # A caller that is cancelled must not cancel the round of the others.
            await asyncio.shield(one.done)

    def config_of(self, number: int) -> TopicConfig | None:
        """Return the settings of a partition, in memory or not; None if it does not exist or is not
        led here."""
        location = self._catalog.locate(number)
        if location is None or location.leader != self._node_id:
            return None
        return self.configs.config_of_topic(location.topic_id)

    def settings_of(self, number: int) -> TopicConfig | None:
        """Return the settings of a partition, whichever broker leads it; None if it does not
        exist."""
        location = self._catalog.locate(number)
        return None if location is None else self.configs.config_of_topic(location.topic_id)

    def led_elsewhere(self, number: int) -> bool:
        location = self._catalog.locate(number)
        return location is not None and location.leader != self._node_id

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Load in the background."""
        self._env.spawn(work, "wait for partitions")

    def make(self, number: int) -> Partition | None:
        """Create an empty partition in `partitions`; None if it does not exist or is not led
        here."""
        location = self._catalog.locate(number)
        if location is None or location.leader != self._node_id:
            return None
        partition = self.partitions[number] = self._new(number, location)
        return partition

    def _has_first_leader(self, number: int) -> bool:
        location = self._catalog.locate(number)
        # Each change of the leader raises the epoch.
        return location is None or location.leader_epoch == 0

    async def _go(self) -> None:
        """Load one round after the other, while callers wait."""
        while (one := self._running) is not None:
            try:
                await self._load(sorted(one.numbers))
            except asyncio.CancelledError:
                one.done.cancel()
                raise
            except Exception as failure:
                if not isinstance(failure, KafkaError | OSError):  # a defect, or the database
                    logger.exception(
                        "loading %s failed, the next request retries",
                        count(len(one.numbers), "partition"),
                    )
                # Before the callers continue: their next `get` must not start another round.
                self._refuse(one.numbers, failure)
                one.done.set_exception(failure)
                # No caller may wait any more, and then asyncio would log it as not retrieved.
                one.done.exception()
            else:
                one.done.set_result(None)
            self._running, self._next = self._next, None

    async def _load(self, numbers: list[int]) -> None:
        for start in range(0, len(numbers), LOAD_AT_ONCE):
            part = numbers[start : start + LOAD_AT_ONCE]
            # Again if rows of segments were replaced during the query: it may name removed
            # segments.
            while True:
                version = self._rows.number
                rows = await self._storage.load_partitions(part)
                # Before the partitions are visible: readers need the segments of their rows.
                await self._learn(mapping for row in rows for mapping in row.mappings)
                await self._begin_terms(rows)
                if version == self._rows.number:
                    break
            for row in rows:
                self._enter(row)

    async def _begin_terms(self, rows: Iterable[PartitionRow]) -> None:
        if len(self._catalog.brokers) < 2:
            return
        states = []
        for row in rows:
            location = self._catalog.locate(row.number)
            if location is None or location.leader != self._node_id:
                continue
            state = begin_epoch(row, location.leader_epoch)
            if state is not None and row.number not in self.partitions:
                row.checkpoint = state
                states.append(state)
        if states:
            # Before the first append: so a start knows which records in the journals are of an
            # earlier term (kafkawire.log.recovery.earlier_terms).
            await self._store_states(states)

    def _enter(self, row: PartitionRow) -> None:
        if row.number in self.partitions:
            return
        # With several brokers rows may be missing for another reason: not all were cut.
        if (text := wrong_mappings(row)) and has_all_rows(self._catalog, row.number):
            self._refuse_rows(row.number, f"{text} of {self._catalog.name_of(row.number)}")
            return
        partition = self.make(row.number)
        if partition is None:
            # Deleted meanwhile, or led elsewhere.
            return
        fill(partition, row)
        if len(self._catalog.brokers) > 1 and not partition.config.movable:
            report_absent(partition)
        elif lacks_rows(partition) and has_all_rows(self._catalog, row.number):
            _report_rows(partition)
        self._notify_listeners(partition)

    def _refuse_rows(self, number: int, text: str) -> None:
        if number not in self._named:
            self._named.add(number)
            logger.critical(
                "%s: its requests get an error. Stop the broker, and rebuild the metadata with "
                "`kafkawire restore --from-log`",
                text,
            )
        self._refuse([number], OSError(text))

    def _notify_listeners(self, partition: Partition) -> None:
        for listener in self._listeners:
            listener.partition_loaded(partition)

    def _new(self, number: int, location: Location) -> Partition:
        return Partition(
            self._commit_log,
            number,
            location.topic_id,
            location.topic,
            location.index,
            location.leader_epoch,
            self.configs.config_of_topic(location.topic_id),
            self.traffic.counters_of_topic(location.topic),
        )

    def unload(self, partition: Partition) -> None:
        """Unload a partition whose state is entirely in the storage."""
        del self.partitions[partition.number]
        # Callers that still have the object see that it is not in memory, and get it again.
        partition.remove()
        # Something is stored of it now; possibly also of those created before it.
        self.fresh_from = max(self.fresh_from, partition.number + 1)
        for listener in self._listeners:
            listener.leave(partition)

    def resign_partition(self, partition: Partition) -> None:
        """Release a partition that another broker leads now: it takes no more appends, and lookups
        do not find it. `release` follows."""
        partition.resign()
        for listener in self._listeners:
            listener.leave(partition)

    def release(self, partition: Partition) -> None:
        """Remove a resigned partition from memory, after its last write."""
        # It may have been loaded again: this broker leads it again.
        if self.partitions.get(partition.number) is partition:
            del self.partitions[partition.number]

    def changed_leaders(self, numbers: Iterable[int]) -> None:
        """Note that others lead or led these partitions."""
        # Something may be stored of these numbers now.
        self.fresh_from = max(self.fresh_from, *(number + 1 for number in numbers))
        # A refusal may be that of the old leader.
        self._refused.clear()
        # What is being read is read again.
        self._rows.note_replacement()

    def _refuse(self, numbers: Iterable[int], failure: Exception) -> None:
        now_s = self._env.clock.monotonic()
        code, why = ErrorCode.KAFKA_STORAGE_ERROR, f"the offset storage cannot be read: {failure}"
        if isinstance(failure, KafkaError) and failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            code, why = failure.code, "the leader changed while the partition was loaded"
        # Each has its own time; those that are over are dropped here.
        self._refused = {at: each for at, each in self._refused.items() if each.until_s > now_s}
        self._refused.update(dict.fromkeys(numbers, _Refusal(now_s + REFUSE_S, code, why)))


def _format_ranges(ranges: Sequence[Range]) -> str:
    return ", ".join(f"{first}-{end - 1}" for first, end in ranges[:MAX_SHOWN])


def _report_rows(partition: Partition) -> None:
    """Report offsets of a partition that no row has, nor the journals."""
    logger.critical(
        "table offset_mappings has no row of the offsets %s of %s-%d, nor have the journals: "
        "reading them returns an error. `kafkawire fsck` says whether a segment has them; then "
        "`kafkawire restore --from-log` rebuilds the metadata",
        _format_ranges(holes(partition)),
        partition.topic,
        partition.index,
    )


def report_absent(partition: Partition) -> None:
    """Report offsets of a partition that another broker led before and did not cut."""
    absent = holes(partition)
    if absent:
        partition.note_absent(absent[-1][1])
        logger.warning(
            "offsets %s of %s-%d are in no segment and not at this broker: another broker led it "
            "before and did not cut them. Reading them returns an error, all other offsets are "
            "served",
            _format_ranges(absent),
            partition.topic,
            partition.index,
        )
