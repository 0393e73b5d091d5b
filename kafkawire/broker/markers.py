"""Markers of transactions: those of partitions led here are written, the others sent.

Markers of `__consumer_offsets` go through the coordinator of its groups, which makes the pending
offsets current; the others are appended to the log. Markers for partitions of another broker are
requests to it (kafkawire.broker.other_brokers). Used by the transaction service for the markers
of its own transactions, and by WriteTxnMarkers for those of other coordinators and operators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kafkawire.broker.new_topics import GROUP_METADATA_TOPIC
from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.log.io.ports import Env
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.marker_sender import Leader

if TYPE_CHECKING:
    from kafkawire.broker.other_brokers import RemoteMarkers
    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog

WriteGroupMarker = Callable[[int, TransactionMarker], Awaitable[ErrorCode]]
"""Writes a marker to the partition of `__consumer_offsets` with this index and returns once its
offsets are current or dropped (GroupService.write_marker)."""

Codes = dict[TopicPartition, ErrorCode | None]
Marked = tuple[TransactionMarker, Iterable[TopicPartition]]
"""A marker and the partitions that it is written to."""


class MarkerWriter:
    """The MarkerPort of a broker: writes to the partitions it leads, sends the others."""

    def __init__(
        self,
        env: Env,
        node_id: int,
        catalog: Catalog,
        table: PartitionTable,
        commit_log: CommitLog,
        write_group_marker: WriteGroupMarker,
        remote: RemoteMarkers,
    ) -> None:
        self._env = env
        self._node_id = node_id
        self._catalog = catalog
        self._table = table
        self._commit_log = commit_log
        self._write_group_marker = write_group_marker
        self._remote = remote

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        """Return the leader in the catalog; None if the partition does not exist."""
        row = self._catalog.by_name.partition_of(*partition)
        return None if row is None else Leader(row.leader, row.leader_epoch)

    def append_at_once(self, work: SendMarkers) -> Codes | None:
        """Append the markers if all partitions are led here and in memory and none is of groups;
        see MarkerPort."""
        partitions: list[tuple[TopicPartition, Partition]] = []
        for at in sorted(work.partitions):
            if at[0] == GROUP_METADATA_TOPIC:
                return None
            try:
                partitions.append((at, self._table.find_by_name(*at)))
            except (KafkaError, NotLoaded):
                return None
        codes: Codes = {}
        now_ms = self._env.clock.now_ms()
        for at, partition in partitions:
            try:
                partition.append_marker(work.marker, now_ms)
                codes[at] = ErrorCode.NONE
            except KafkaError as error:
                codes[at] = error.code
        return codes

    async def write_markers(self, broker: int, work: Sequence[SendMarkers]) -> list[Codes]:
        """Write the markers of decided transactions, here or at another broker; see MarkerPort.
        Raises KafkaError if that broker does not answer."""
        if broker != self._node_id:
            return await self._remote.write(broker, work)
        return await self.write([(each.marker, each.partitions) for each in work])

    def close(self) -> None:
        """End the connections to other brokers."""
        self._remote.close()

    async def write(self, work: Iterable[Marked]) -> list[Codes]:
        """Write each marker to its partitions, in this order; return the codes of each marker once
        all are durable or have failed. The caller bounds the number of partitions."""
        found: list[Codes] = []
        groups: list[tuple[Codes, TransactionMarker, TopicPartition]] = []
        appended: list[tuple[Codes, TopicPartition, asyncio.Future[ErrorCode]]] = []
        for marker, partitions in work:
            codes: Codes = {}
            for partition in partitions:
                if partition[0] == GROUP_METADATA_TOPIC:
                    groups.append((codes, marker, partition))
                else:
                    appended.append((codes, partition, await self._append(marker, partition)))
                await self._env.slices.give_way()
            found.append(codes)
        if groups:
            await asyncio.gather(*(self._write_for_groups(*each) for each in groups))
        for codes, partition, durable in appended:
            codes[partition] = await durable
        return found

    async def _write_for_groups(
        self, codes: Codes, marker: TransactionMarker, partition: TopicPartition
    ) -> None:
        leader = self.leader_of(partition)
        if leader is None:
            codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif leader.broker != self._node_id:
            codes[partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            codes[partition] = await self._write_group_marker(partition[1], marker)

    async def _append(
        self, marker: TransactionMarker, partition: TopicPartition
    ) -> asyncio.Future[ErrorCode]:
        """Append a marker; the result is there once it is durable or has failed. Each is waited for
        on its own: while others are appended, or groups write theirs, the write batch of this one
        may fail, and a later commit says nothing about it."""
        durable: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        try:
            await self._table.load([partition])
            found = self._table.find_by_name(*partition)
            found.append_marker(marker, self._env.clock.now_ms())
        except KafkaError as error:
            durable.set_result(error.code)
            return durable

        def settle(failure: BaseException | None) -> None:
            if failure is None and found.resigned:
                failure = found.refusal()
            if not durable.done():
                durable.set_result(ErrorCode.NONE if failure is None else code_of(failure))

        found.after_commit(settle)
        return durable
