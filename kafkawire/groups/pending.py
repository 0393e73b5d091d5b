"""Pending offsets: committed within transactions that have not ended.

Any marker of the producer ends all its pending offsets of this partition of `__consumer_offsets`,
for all groups. A commit makes them current, unless a commit of the same partition was written to
the log after them; an abort drops them.

Steps are applied in log order, so no offsets of records are kept: a commit marks the pending
offsets before it as superseded. Pure; part of kafkawire.groups.offsets.Offsets, which alone
modifies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kafkawire.groups.model.records import Offset, OffsetKey, OffsetRecord

Place = tuple[str, int]
"""Topic and partition."""

_NONE: Mapping[Place, dict[int, PendingOffset]] = {}


class PendingOffset(NamedTuple):
    """An offset of a transaction. `order` grows with the log; `superseded`: a later commit of the
    partition is current already, and stays so when the transaction commits."""

    order: int
    value: Offset
    superseded: bool


class PendingRecord(NamedTuple):
    """A pending offset as a snapshot stores it; `record.value` is not None."""

    producer_id: int
    record: OffsetRecord
    superseded: bool


class PendingOffsets:
    """Pending offsets by group, partition and producer, without empty entries, and the keys of
    each producer. Producers can commit only partitions of existing topics, so both are bounded by
    the open transactions and the partitions of the cluster."""

    __slots__ = ("_by_producer", "_order", "by_group")

    def __init__(self) -> None:
        self.by_group: dict[str, dict[Place, dict[int, PendingOffset]]] = {}
        self._by_producer: dict[int, set[OffsetKey]] = {}
        self._order = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_producer.values()))

    def pending_partitions(self, group_id: str) -> Mapping[Place, Mapping[int, PendingOffset]]:
        """Return the partitions of a group with pending offsets, by producer."""
        return self.by_group.get(group_id, _NONE)

    def producers(self) -> set[int]:
        return set(self._by_producer)

    def topics(self) -> set[str]:
        return {topic for _, topic, _ in self._keys()}

    def of_topics(self, topics: set[str]) -> set[OffsetKey]:
        return {key for key in self._keys() if key[1] in topics}

    def _keys(self) -> set[OffsetKey]:
        return set().union(*self._by_producer.values())

    def records(self) -> Iterator[PendingRecord]:
        """Yield all pending offsets; `restore` takes them."""
        found = [
            (pending.order, PendingRecord(producer_id, record, pending.superseded))
            for group_id, places in self.by_group.items()
            for (topic, partition), holders in places.items()
            for producer_id, pending in holders.items()
            for record in [OffsetRecord(group_id, topic, partition, pending.value)]
        ]
        # In log order, in which `restore` numbers them again.
        found.sort(key=lambda pair: pair[0])
        yield from (record for _, record in found)

    def put(self, producer_id: int, record: OffsetRecord, *, superseded: bool = False) -> None:
        """Add a pending offset. It replaces an earlier one of the same producer and partition."""
        assert record.value is not None, "transactions delete no offsets"
        self._order += 1
        place = record.topic, record.partition
        holders = self.by_group.setdefault(record.group_id, {}).setdefault(place, {})
        holders[producer_id] = PendingOffset(self._order, record.value, superseded)
        key = record.group_id, record.topic, record.partition
        self._by_producer.setdefault(producer_id, set()).add(key)

    def supersede(self, key: OffsetKey, before: int | None = None) -> None:
        """Note a commit of this partition: pending offsets before it (in `order`; None: all) do
        not become current any more."""
        group_id, topic, partition = key
        holders = self.by_group.get(group_id, {}).get((topic, partition), {})
        for producer_id, pending in holders.items():
            if before is None or pending.order < before:
                holders[producer_id] = pending._replace(superseded=True)

    def remove(self, key: OffsetKey) -> None:
        """Remove the pending offsets of a partition, of all producers: a tombstone was written."""
        group_id, topic, partition = key
        for producer_id in list(self.pending_partitions(group_id).get((topic, partition), ())):
            self._remove(producer_id, key)

    def end_transaction(
        self, producer_id: int, *, commit: bool
    ) -> tuple[list[OffsetRecord], set[OffsetKey]]:
        """End the transaction of a producer. Return the records that become current, and the keys
        of all its pending offsets, which are forgotten."""
        # All of the producer, whatever their epoch, as in Kafka: at most one transaction is open.
        keys = self._by_producer.get(producer_id, set()).copy()
        current: list[OffsetRecord] = []
        for key in keys:
            pending = self._remove(producer_id, key)
            if commit and not pending.superseded:
                current.append(OffsetRecord(*key, pending.value))
                # The order of offsets in the log decides, not that of the markers: one that another
                # producer wrote before must not replace this one when its transaction commits.
                self.supersede(key, pending.order)
        return current, keys

    def restore(self, stored: Iterable[PendingRecord]) -> None:
        for producer_id, record, superseded in stored:
            self.put(producer_id, record, superseded=superseded)

    def _remove(self, producer_id: int, key: OffsetKey) -> PendingOffset:
        group_id, topic, partition = key
        places = self.by_group[group_id]
        holders = places[topic, partition]
        pending = holders.pop(producer_id)
        if not holders:
            del places[topic, partition]
        if not places:
            del self.by_group[group_id]
        keys = self._by_producer[producer_id]
        keys.discard(key)
        if not keys:
            del self._by_producer[producer_id]
        return pending
