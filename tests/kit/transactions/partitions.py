"""Partitions as far as transactions see them: data, markers, and the epochs that fence both.

The rules are those of Kafka's ProducerAppendInfo. What is written is durable, and `ends` says how
the data of each transaction ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.decision import SendMarkers

Key = tuple[int, int]
"""A transaction as its client knows it: number of the producer instance, number of the
transaction."""


@dataclass
class Producing:
    """The state of one producer id in a partition."""

    epoch: int = -1
    open: Key | None = None
    coordinator_epoch: int = -1
    markers: int = 0


@dataclass
class PartitionModel:
    """One partition. `ends`: for each transaction with data here, the outcomes its data got."""

    producers: dict[int, Producing] = field(default_factory=dict)
    ends: dict[Key, list[bool]] = field(default_factory=dict)
    written: int = 0

    def at(self, producer_id: int) -> Producing:
        return self.producers.setdefault(producer_id, Producing())

    def append(self, producer_id: int, epoch: int, key: Key) -> ErrorCode:
        """One batch of a transaction, already verified with the coordinator."""
        at = self.at(producer_id)
        if epoch < at.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        assert at.open in (None, key), f"{key} writes into the open {at.open}: torn"
        at.epoch, at.open = epoch, key
        self.ends.setdefault(key, [])
        return ErrorCode.NONE

    def mark(self, work: SendMarkers) -> ErrorCode:
        """The marker of a transaction."""
        at = self.at(work.producer_id)
        if work.transaction_version >= 2:
            again = work.producer_epoch == at.epoch and (
                at.open is None or work.producer_epoch == 32_767
            )
            if work.producer_epoch <= at.epoch and not again:
                return ErrorCode.INVALID_PRODUCER_EPOCH
        elif work.producer_epoch < at.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if at.coordinator_epoch > work.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if at.open is not None:
            self.ends[at.open].append(work.commit)
        at.epoch, at.open = work.producer_epoch, None
        at.coordinator_epoch = work.coordinator_epoch
        at.markers += 1
        self.written += 1
        return ErrorCode.NONE
