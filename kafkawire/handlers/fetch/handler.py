"""Fetch v4-18: plan, gather views of the stored batches, or park until there are enough.

v5 asks with and answers the log start; v7 sessions (KIP-227); v9 leader epochs (KIP-320); v11
racks (KIP-392); v12 is flexible and detects a diverged log (KIP-595); v13 names topics by id.

A parked Fetch is woken by its partitions' high watermarks and by a deadline, whichever comes
first; nothing polls. Recent bytes go out as views onto the mapped journals, older ones are read
by the log's pool, so a cold consumer never stops the loop. What is in the remote tier is waited for
as long as `remote.fetch.max.wait.ms` says, in all partitions at once; a partition whose data has
not come by then is answered empty, and the next Fetch finds it.

What is read or copied for an answer is memory that is taken before (`broker.answer_memory`) and
given back when the answer has left; while others hold it a Fetch is answered with less, or waits.
A connection has one Fetch at a time, as in Kafka: pipelined ones start one after the other.

Not done: sessions (session id 0 is always answered, so clients send full requests, which KIP-227
allows), reading from a follower, transactions (last stable offset = high watermark).
"""

from __future__ import annotations

import logging
from asyncio import Future, get_running_loop
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.fetch import FLEXIBLE_FROM, FetchResult, read_request, write_response
from kafkawire.codec.produce import ManyItems
from kafkawire.handlers.budget import IterationBudget
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.fetch.long import FULL, LongFetch
from kafkawire.handlers.fetch.request import MEMORY_PATIENCE_S, Attempt, fill
from kafkawire.log.segments.store.remote_port import readable_log_start

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.partition.partition import Partition, Plan

logger = logging.getLogger(__name__)

DEFECTS_LOGGED_MAX = 1000
"""Partitions whose reads met a defect that are named in the log: clients come again and again."""

BATCH_BYTES = 4 << 20
"""Bytes of responses sent in one event-loop iteration: a millisecond or two of copying by the
kernel. All other clients wait as long."""


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
        self.parked: set[Attempt | LongFetch] = set()
        self.starved: set[Attempt] = set()  # that wait for memory
        self.defects: set[str] = set()
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
        """Answer at once, start a cold read, or park. False: a Fetch goes before it."""
        if peer.fetching:
            return False
        exchange = Exchange(peer, version, correlation_id, version >= FLEXIBLE_FROM)
        self.counts.fetches += 1
        try:
            ask = read_request(buf, pos, end, version)
        except ManyItems:
            peer.exchanges.append(exchange)
            peer.fetching = True
            LongFetch(self, exchange, block).begin(buf[pos:end])
            return True
        peer.exchanges.append(exchange)
        if ask.session_epoch not in FULL:
            # No session was ever given here: it is another broker's, of this address before us.
            # Only this error makes a client send a full request; silence would starve it.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            exchange.answer_parts(
                write_response([], version, read_committed=False, error_code=code), None
            )
            return True
        peer.fetching = True
        self.budget.do(Attempt(self, exchange, ask).begin)
        return True

    def close(self) -> None:
        """Answer what is parked with what there is: the broker is closing."""
        self.budget.finish()
        for attempt in list(self.parked):
            attempt.expire()
        for attempt in list(self.starved):
            attempt.give_up()

    def code_of(self, failure: Exception, topic: str | bytes, index: int, offset: int) -> int:
        """The error of a failed read. A defect is logged, once for each partition."""
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
        """Fill in where the partition begins and ends."""
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.high_watermark
        result.log_start_offset = readable_log_start(partition, self.segments)

    @staticmethod
    def diverged(result: FetchResult, partition: Partition, last_epoch: int, offset: int) -> bool:
        """KIP-595: the epoch the client read last ended earlier here than it believes."""
        epoch, end_offset = partition.epoch_end(last_epoch)
        if epoch < 0 or end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_epoch or end_offset < offset:
            result.diverging = (epoch, end_offset)
            return True
        return False

    async def read(self, result: FetchResult, plan: Plan, patience_s: float | None = None) -> None:
        """Fill in what has to be read, or the error of that."""
        try:
            buffers = await self.commit_log.read(plan, patience_s)
            fill(result, buffers, sum(map(len, buffers)))
        except Exception as failure:
            name, index = plan.partition.topic, plan.partition.index
            result.error_code = self.code_of(failure, name, index, plan.offset)

    async def take_memory(self, wanted_bytes: int) -> int:
        """Wait until memory is free for a part of what an answer needs; 0: not in time."""
        granted = self.memory.take(wanted_bytes) if wanted_bytes else 0
        if granted or not wanted_bytes:
            return granted
        done: Future[int] = get_running_loop().create_future()

        def granted_later(size_bytes: int) -> None:
            if done.done():
                self.memory.release(size_bytes)
            else:
                done.set_result(size_bytes)

        self.memory.when_free(wanted_bytes, granted_later)
        timer = self.env.call_later(MEMORY_PATIENCE_S, granted_later, 0)
        try:
            return await done
        finally:
            timer.cancel()
            self.memory.cancel(granted_later)
