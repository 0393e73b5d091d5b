"""Markers of transactions, written to the partitions that this broker leads.

Markers of `__consumer_offsets` go through the coordinator of its groups, which makes the pending
offsets current; the others are appended to the log. Used by the transaction service for the markers
of its own transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kafkawire.broker.new_topics import GROUP_METADATA_TOPIC
from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.marker_sender import Leader

if TYPE_CHECKING:
    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.metadata.catalog import Catalog

WriteGroupMarker = Callable[[int, TransactionMarker], Awaitable[ErrorCode]]
"""Writes a marker to the partition of `__consumer_offsets` with this index and returns once its
offsets are current or dropped (GroupService.write_marker)."""

Codes = dict[TopicPartition, ErrorCode | None]


class MarkerWriter:
    """The MarkerPort of a broker that leads every partition of its transactions."""

    def __init__(
        self,
        env: Env,
        node_id: int,
        catalog: Catalog,
        table: PartitionTable,
        commit_log: CommitLog,
        write_group_marker: WriteGroupMarker,
    ) -> None:
        self._env = env
        self._node_id = node_id
        self._catalog = catalog
        self._table = table
        self._commit_log = commit_log
        self._write_group_marker = write_group_marker

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        """Return the leader in the catalog; None if the partition does not exist."""
        row = self._catalog.by_name.partition_of(*partition)
        return None if row is None else Leader(row.leader, row.leader_epoch)

    async def write_markers(self, broker: int, work: Sequence[SendMarkers]) -> list[Codes]:
        """Write the markers of decided transactions; see MarkerPort. Raises KafkaError if the
        commit fails, or for another broker."""
        if broker != self._node_id:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {broker} takes no markers from this one."
            )
        asked = (self.write(each.marker, each.partitions) for each in work)  # they share commits
        return list(await asyncio.gather(*asked))

    async def write(self, marker: TransactionMarker, partitions: Iterable[TopicPartition]) -> Codes:
        """Write a marker to each partition; return a code for each once all are durable. Raises
        KAFKA_STORAGE_ERROR if the commit fails: then it is not known which are."""
        found: Codes = {}
        groups: list[TopicPartition] = []
        for partition in partitions:
            if partition[0] == GROUP_METADATA_TOPIC:
                groups.append(partition)
            else:
                found[partition] = await self._append(marker, partition)
            await self._env.slices.give_way()
        # As many as __consumer_offsets has partitions; they share one commit.
        asked = [self._write_group_marker(index, marker) for _, index in groups]
        found.update(zip(groups, await asyncio.gather(*asked), strict=True))
        await self._commit_log.committed()
        return found

    async def _append(self, marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        try:
            await self._table.load([partition])
            self._table.named(*partition).append_marker(marker, self._env.clock.now_ms())
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE
