"""A persister in memory, with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.share.persister import (
    UNKNOWN_COUNT,
    UNSET_OFFSET,
    SharePartitionKey,
    ShareState,
    StateBatch,
)


class MemoryPersister:
    """States of share partitions. `failures`: errors that the next writes raise, without effect;
    `gate`: writes wait for it, if there is one; `writes`: what was stored, in order."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.leader_epochs: dict[SharePartitionKey, int] = {}
        self.failures: list[ErrorCode] = []
        self.gate: asyncio.Event | None = None
        self.writes: list[tuple[SharePartitionKey, tuple[StateBatch, ...]]] = []

    def initialize(
        self, key: SharePartitionKey, state_epoch: int = 1, start_offset: int = UNSET_OFFSET
    ) -> None:
        """As InitializeShareGroupState."""
        known = self.states.get(key)
        if known is not None and state_epoch < known.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self.states[key] = ShareState(state_epoch, start_offset)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        state = self._check(key, leader_epoch)
        self.leader_epochs[key] = leader_epoch
        return state

    async def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: tuple[StateBatch, ...],
    ) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise KafkaError(self.failures.pop(0))
        state = self._check(key, leader_epoch)
        if state_epoch < state.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        start = max(state.start_offset, start_offset)
        if delivery_complete_count == UNKNOWN_COUNT:
            delivery_complete_count = state.delivery_complete_count
        self.writes.append((key, batches))
        self.states[key] = ShareState(
            state.state_epoch,
            start,
            merge_batches(state.batches, batches, start),
            delivery_complete_count,
        )

    def _check(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        state = self.states.get(key)
        if state is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if leader_epoch < self.leader_epochs.get(key, -1):
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        return state


def merge_batches(
    old: Iterable[StateBatch], new: Iterable[StateBatch], start: int
) -> tuple[StateBatch, ...]:
    """Merge offset by offset: slow, and simple enough to be right."""
    records = {
        offset: (batch.state, batch.delivery_count)
        for batches in (old, new)
        for batch in batches
        for offset in range(batch.first, batch.last + 1)
        if offset >= start
    }
    merged: list[StateBatch] = []
    for offset, value in sorted(records.items()):
        if merged and merged[-1].last == offset - 1 and merged[-1][2:] == value:
            merged[-1] = merged[-1]._replace(last=offset)
        else:
            merged.append(StateBatch(offset, offset, *value))
    return tuple(merged)
