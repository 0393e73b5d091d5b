"""Fetches of clients that name their rack (KIP-392): sent to a broker of their rack by the leader,
and served there from the remote tier or the copy of a follower. See kafkawire.broker.rack_reads.

Kafka: ReplicaManager.findPreferredReadReplica. Called by kafkawire.handlers.fetch.request, for such
clients only, and only with `replica.selector.class` set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kafkawire.broker.partitions import NotLoaded
from kafkawire.broker.rack_reads.redirects import Redirects
from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.fetch import FetchItem
from kafkawire.codec.flat import Topic
from kafkawire.handlers.exchange import Exchange

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.partition.partition import Partition, Plan


class RackReads:
    """Finds partitions for clients with a rack, and the brokers that they are to read from."""

    def __init__(self, broker: Broker) -> None:
        self._selector = broker.replica_selector
        self._views = broker.views
        self._table = broker.table
        self._catalog = broker.catalog
        self._store = broker.log.segments.store
        self._replication = broker.log.replication
        self._env = broker.env
        self._node_id = broker.node_id
        self.enabled = self._selector.enabled

    def find(self, topic: Topic, index: int, leader_epoch: int, offset: int) -> Partition:
        """Return the partition, or the part of one that another broker leads which has the offset.
        Raises as PartitionTable.find; NOT_LEADER_OR_FOLLOWER if the offset is not readable here.
        After NotLoaded load it and call again."""
        try:
            return self._table.find(topic, index, leader_epoch)
        except KafkaError as failure:
            if failure.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            number = self._elsewhere(topic, index, leader_epoch)
            if number is None:
                raise
        return self._views.find(number, offset)

    def _elsewhere(self, topic: Topic, index: int, leader_epoch: int) -> int | None:
        """Return the number of a partition that another broker leads; None if that has changed."""
        catalog = self._catalog
        if isinstance(topic, str):
            info = catalog.by_name.partition_of(topic, index)
        else:
            info = catalog.by_id.partition_of(topic, index)
        if info is None or info.leader == self._node_id:
            return None
        if leader_epoch >= 0 and leader_epoch != info.leader_epoch:
            newer = leader_epoch > info.leader_epoch
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH
            )
        return info.number

    def find_preferred_read_replica(
        self, exchange: Exchange, partition: Partition, offset: int, rack: str
    ) -> int:
        """Return the broker that the client of a rack is to read an offset from; -1: this one."""
        peer, number = exchange.peer, partition.number
        node = self._find_follower(partition, offset, rack, peer.listener)
        if node is None and self._in_tier(partition, offset):
            node = self._selector.reader(number, self._node_id, rack, peer.listener)
        if node is None:
            return -1
        if peer.redirects is None:
            peer.redirects = Redirects()
        now_s = self._env.clock.monotonic()
        if not peer.redirects.allows(number, offset, exchange.correlation_id, now_s):
            return -1
        return node

    def _find_follower(
        self, partition: Partition, offset: int, rack: str, listener: str
    ) -> int | None:
        """Return the broker of a rack whose machine has an in-sync copy of a partition."""
        if self._replication is None or not partition.config.replicated:
            return None
        if not partition.log_start <= offset <= partition.high_watermark:
            return None
        nodes, number = self._replication.in_sync_nodes(), partition.number
        return self._selector.reader_among(nodes, number, self._node_id, rack, listener)

    def _in_tier(self, partition: Partition, offset: int) -> bool:
        end = min(partition.commit_offset, partition.last_stable_offset)
        if not partition.log_start <= offset < end:
            return False
        if partition.config.tier_level is TierLevel.DISABLE:
            return False
        segments = partition.segments
        at = segments.find(offset)
        segment = self._store.find(segments.segment[at]) if at < len(segments) else None
        return segment is not None and bool(segment.row.object)

    async def load(self, items: Iterable[FetchItem]) -> None:
        """Load the views that a request needs."""
        numbers: list[int] = []
        for topic, index, epoch, offset, *_ in items:
            try:
                self.find(topic, index, epoch, offset)
            except NotLoaded as missing:
                numbers += self._led_elsewhere(missing.numbers)
            except KafkaError:
                pass  # raised again by the lookup
            await self._env.slices.give_way()
        await self._views.load(numbers)

    def load_then(self, numbers: list[int], resume: Callable[[], None]) -> None:
        """Load partitions that are led here, and views of the others; then call `resume`."""
        elsewhere = self._led_elsewhere(numbers)
        if not elsewhere:
            self._table.load_then(numbers, resume)
            return

        async def go() -> None:
            await self._views.load(elsewhere)
            here = [number for number in numbers if number not in elsewhere]
            if here:
                self._table.load_then(here, resume)
            else:
                resume()

        self._env.spawn(go(), "wait for views of partitions")

    async def plan_again(self, plan: Plan) -> Plan:
        """Return the plan of a read that failed in a view, whose rows are read again: segments may
        have been replaced. Raises as `find`."""
        partition = plan.partition
        self._views.drop(partition)
        await self._views.load([partition.number])
        found = self._views.find(partition.number, plan.offset)
        return found.plan(plan.offset, plan.max_bytes, found.high_watermark, plan.first)

    def _led_elsewhere(self, numbers: Iterable[int]) -> set[int]:
        return {each for each in numbers if self._catalog.leader_of(each) != self._node_id}
