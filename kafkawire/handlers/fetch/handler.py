"""Fetch v4-18: plan, gather views of the stored batches, or park until there are enough.

v5 log start in request and response; v7 sessions (KIP-227); v9 leader epochs (KIP-320); v11 racks
(KIP-392); v12 is flexible and detects a diverged log (KIP-595); v13 names topics by id; v16 has
leader hints (KIP-951).

A parked Fetch is woken by its partitions' high watermarks and by a deadline, whichever is first,
without polling. Recent bytes are sent as views of the mapped journals; older ones are read in the
log's thread pool, so a cold consumer never blocks the event loop. Reads from the remote tier wait
up to `remote.fetch.max.wait.ms`, for all partitions concurrently; a partition whose data has not
arrived is answered empty, and the next Fetch finds it.

Memory for data that is read or copied is reserved before (`broker.answer_memory`) and released when
the response was sent; long stretches of segment files are sent from there and need none. While
others hold it a Fetch is answered with less, or waits. A connection has one Fetch at a time, as in
Kafka: pipelined ones start one after another.

Not done: sessions (session id 0 is always answered, so clients send full requests, which KIP-227
allows). Clients with a rack read from another broker only what is in the remote tier
(kafkawire.broker.replicas).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.fetch import FLEXIBLE_FROM, FetchResult, read_request
from kafkawire.codec.types import Part
from kafkawire.handlers.budget import IterationBudget
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.fetch.rack_reads import RackReads
from kafkawire.handlers.fetch.request import Attempt, fill, listed
from kafkawire.handlers.hot_rights import TopicRights
from kafkawire.handlers.leader_hints import LeaderHints
from kafkawire.log.segments.store.remote_port import readable_log_start
from kafkawire.security.acls.model import Operation

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.partition.partition import Partition, Plan
    from kafkawire.log.partition.state import LoadedPartition

logger = logging.getLogger(__name__)

DEFECTS_LOGGED_MAX = 1000
"""Partitions whose defective reads are logged, because clients retry repeatedly."""

BATCH_BYTES = 4 << 20
"""Bytes of responses sent in one event-loop iteration: the kernel copies them in a millisecond or
two, and all other clients wait."""

_DECODED: Final = object()
"""In place of the next step of a request that is decoded."""


class Fetch:
    """The handler: one for the broker's life."""

    def __init__(self, broker: Broker) -> None:
        self.table = broker.table
        self.segments = broker.log.segments.store
        self.commit_log = broker.log.commit_log
        self.env = broker.env
        self.config = broker.config
        self.counts = broker.counts
        self.memory = broker.answer_memory
        self.quotas = broker.quotas
        self.parked: dict[Attempt, None] = {}  # in order of arrival
        self.starved: dict[Attempt, None] = {}  # waiting for memory
        self.defects: set[str] = set()
        self.rights = TopicRights(broker, "Fetch", Operation.READ)
        self.hints = LeaderHints(broker)
        self.racks = RackReads(broker)
        self.budget = IterationBudget(broker.env.call_soon, BATCH_BYTES)

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Answer immediately, start a cold read, or park. False: another Fetch of the connection is
        unanswered."""
        if peer.fetching:
            return False
        exchange = Exchange(peer, version, correlation_id, version >= FLEXIBLE_FROM)
        self.counts.fetches += 1
        attempt = Attempt(self, exchange)
        decoding = read_request(attempt.ask, buf, pos, end, version)
        many = next(decoding, _DECODED) is not _DECODED
        peer.exchanges.append(exchange)
        peer.fetching = True
        if many:
            attempt.begin_many(decoding, block)
            return True
        if attempt.prepare():
            if peer.rights is not None:
                for _ in attempt.check_rights(peer.rights):
                    pass
            self.budget.do(
                attempt.begin, attempt.begin_later if self.quotas.of_requests else attempt.begin
            )
        return True

    def close(self) -> None:
        """Answer parked requests with the available data, because the broker is stopping."""
        self.budget.finish()
        for attempt in list(self.parked):
            attempt.expire()
        for attempt in list(self.starved):
            attempt.give_up()

    def code_of(self, failure: Exception, topic: str | bytes, index: int, offset: int) -> int:
        """Return the error of a failed read. A defect is logged once for each partition."""
        if not isinstance(failure, KafkaError | OSError):
            where = f"{topic if isinstance(topic, str) else topic.hex()}-{index}"
            if where not in self.defects and len(self.defects) < DEFECTS_LOGGED_MAX:
                self.defects.add(where)
                logger.error(
                    "reading %s at offset %d failed, answered with an error",
                    where,
                    offset,
                    exc_info=failure,
                )
        return int(code_of(failure))

    def describe(self, result: FetchResult, partition: Partition) -> None:
        """Set the log start and the end offsets of the partition."""
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.last_stable_offset
        result.log_start_offset = readable_log_start(partition, self.segments)

    @staticmethod
    def diverged(result: FetchResult, partition: Partition, last_epoch: int, offset: int) -> bool:
        """KIP-595: return the end of the client's last epoch here if that is lower than the
        client's position."""
        epoch, end_offset = partition.epoch_end(last_epoch)
        if epoch < 0 or end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_epoch or end_offset < offset:
            result.diverging = (epoch, end_offset)
            return True
        return False

    async def read(
        self,
        result: FetchResult,
        plan: Plan,
        patience_s: float | None = None,
        *,
        committed: bool,
        spans: bool = False,
    ) -> None:
        """Read the records of the plan, or set their error; for a reader of `committed` records
        with the aborted transactions. `spans`: long stretches of files are not read."""
        aborted: list[Aborted] = []
        partition = plan.partition
        try:
            parts: Sequence[Part]
            try:
                parts = await self._parts(plan, patience_s, aborted if committed else None, spans)
            except (KafkaError, OSError):
                if not (partition.resigned and self.racks.enabled):
                    raise
                plan = await self.racks.plan_again(plan)
                aborted.clear()
                parts = await self._parts(plan, patience_s, aborted if committed else None, spans)
            fill(result, parts, sum(map(len, parts)))
            self.sent(partition, result.size_bytes)
            if aborted:
                result.aborted = listed(aborted)
        except Exception as failure:
            result.error_code = self.code_of(failure, partition.topic, partition.index, plan.offset)
            if partition.resigned and self.racks.enabled:
                # Its leader may have a copy that can be read.
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def _parts(
        self, plan: Plan, patience_s: float | None, aborted: list[Aborted] | None, spans: bool
    ) -> Sequence[Part]:
        if spans:
            return await self.commit_log.reader.read_parts(plan, patience_s, aborted)
        return await self.commit_log.read(plan, patience_s, aborted)

    def sent(self, partition: LoadedPartition, size_bytes: int) -> None:
        """Count bytes of older records of a partition in a response."""
        partition.traffic.out_bytes += size_bytes
        if partition.resigned:
            self.counts.replica_bytes += size_bytes
