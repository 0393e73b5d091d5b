"""The Produces of one write batch: responses after it was written, and after the commit.

Each partition names the sink that commits its batches (kafkawire.log.partition.partition).

A batch stays in the receive buffer until its write batch is written, so a write batch pins that
memory. One callback of the log serves all its requests, and each connection sends once. Used by
`produce.handler` and `produce.repeat`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from kafkawire.codec.errors import KafkaError, code_of
from kafkawire.handlers.exchange import (
    SMALL_ANSWER_BYTES,
    Exchange,
    HeldAnswerMemory,
    Peer,
    Pinned,
    frame,
)
from kafkawire.log.partition.waiting_queue import FailedPartitions
from kafkawire.messages.flat_produce import FLEXIBLE_FROM, ProduceResult, write_response
from kafkawire.metric_counters import Counts

if TYPE_CHECKING:
    from kafkawire.handlers.leader_hints import LeaderHints
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition
    from kafkawire.log.partition.state import LoadedPartition, Sink

logger = logging.getLogger(__name__)


class Waiting(Exchange):
    """One or several Produces whose batches are being written.

    `size_bytes`: receive memory of the requests. `sinks`: where the batches have to be, after the
    write, before the answer.
    """

    __slots__ = ("acks", "sinks", "size_bytes")

    acks: int
    sinks: tuple[Sink, ...]
    size_bytes: int

    def note_batch(self, partition: Partition) -> None:
        """Note a batch that was queued for a partition. Hot."""
        sink, acks = partition.sink, self.acks
        if sink not in self.sinks and (acks == -1 or (acks == 1 and sink.awaited_by_acks_1)):
            self.sinks = (*self.sinks, sink)

    def respond(self, failure: BaseException | None) -> None:
        """Build the response; a failure replaces each success."""
        raise NotImplementedError

    def answer_with_error(self, partition: LoadedPartition, why: KafkaError) -> bool:
        """Answer the batches of one partition with this error; return whether there are any."""
        raise NotImplementedError

    def answer_resigned(self, partition: Partition, why: KafkaError, hints: LeaderHints) -> bool:
        """Answer the batches of a resigned partition with this error; return whether there are
        any."""
        return self.answer_with_error(partition, why)


class ProduceExchange(Waiting):
    """One Produce of any form, and its response. `hints`: set if a batch was refused."""

    __slots__ = ("hints", "results")

    def __init__(
        self, peer: Peer, version: int, correlation_id: int, acks: int, size_bytes: int
    ) -> None:
        super().__init__(peer, version, correlation_id, version >= FLEXIBLE_FROM)
        self.acks = acks
        self.size_bytes = size_bytes
        self.sinks = ()
        self.results: list[ProduceResult] = []
        self.hints: LeaderHints | None = None

    def respond(self, failure: BaseException | None) -> None:
        """Build the response; a failure replaces each success."""
        if failure is not None:
            self.results = [fail_result(result, failure) for result in self.results]
        tags = None
        if self.hints is not None:
            tags = self.hints.of_produce(self.peer, self.version, self.results)
        body = write_response(self.results, self.version, self.throttle_ms, tags)
        if len(body) > SMALL_ANSWER_BYTES:
            self.peer.answers.add_bytes(len(body))
            self.pins = HeldAnswerMemory(self.peer, len(body))
        self.parts = [frame(self.correlation_id, body, self.flexible)]

    def answer_with_error(self, partition: LoadedPartition, why: KafkaError) -> bool:
        """Answer the batches of one partition with this error."""
        return replace_successes(self.results, partition, why)

    def answer_resigned(self, partition: Partition, why: KafkaError, hints: LeaderHints) -> bool:
        """Answer the batches of a resigned partition with this error."""
        self.hints = hints
        return self.answer_with_error(partition, why)


def replace_successes(
    results: list[ProduceResult], partition: LoadedPartition, why: KafkaError
) -> bool:
    """Replace the successes of one partition by an error; return whether there were any."""
    topics = partition.topic, partition.topic_id
    found = False
    for at, result in enumerate(results):
        if result[1] == partition.index and result[0] in topics and not result[2]:
            results[at] = fail_result(result, why)
            found = True
    return found


class Portion(Waiting):
    """Batches of one long request in one write batch, see `handlers.produce.long`. Here, because
    compiled classes have no bases or subclasses that are not."""

    __slots__ = ("reported", "results")

    def __init__(
        self, whole: Exchange, acks: int, reported: Callable[[], None], *, first: bool
    ) -> None:
        super().__init__(whole.peer, whole.version, whole.correlation_id, whole.flexible)
        self.acks = acks
        self.size_bytes = 0
        self.sinks = ()
        self.reported = reported
        self.more = 0 if first else -1  # the portions of a request count as one
        self.results: list[ProduceResult] = []

    def add_queued(self, result: ProduceResult, size_bytes: int) -> None:
        """Add a batch that is queued on the log."""
        self.results.append(result)
        self.size_bytes += size_bytes

    def add_queued_before(
        self, begun: Waiting, results: list[ProduceResult], size_bytes: int
    ) -> None:
        """Begin with batches that were queued, for `begun`, before it was known that the request is
        long."""
        self.sinks = begun.sinks
        self.results = results
        self.size_bytes = size_bytes

    def respond(self, failure: BaseException | None) -> None:
        """Build the response; a failure replaces each success."""
        if failure is not None:
            self.results = [fail_result(result, failure) for result in self.results]
        self.reported()

    def answer_with_error(self, partition: LoadedPartition, why: KafkaError) -> bool:
        """Answer the batches of one partition with this error."""
        return replace_successes(self.results, partition, why)


class PendingProduces:
    """The Produces whose batches are in one write batch. `now_ms` is its time. It is in `open`
    while some are not answered; `is_written`: only those in `waiting`, by the sinks that they wait
    for."""

    __slots__ = (
        "blocks", "counts", "exchanges", "is_written", "log", "now_ms", "number", "open", "waiting",
    )  # fmt: skip

    def __init__(
        self, log: CommitLog, counts: Counts, now_ms: int, open_ones: dict[PendingProduces, None]
    ) -> None:
        self.open = open_ones
        self.is_written = False
        self.log = log
        self.counts = counts
        self.number = log.batch_number
        self.now_ms = now_ms
        self.exchanges: list[Waiting] = []
        self.waiting: dict[tuple[Sink, ...], list[Waiting]] = {}
        self.blocks: list[Pinned] = []

    def add(self, exchange: Waiting, block: Pinned) -> None:
        """Register a Produce to be answered after the write or commit, and pin its batches in
        `block` until the write. Hot."""
        exchanges = self.exchanges
        if not exchanges:
            self.open[self] = None
            self.log.after_write(self.note_write, exchanges)
        exchanges.append(exchange)
        blocks = self.blocks
        if not blocks or blocks[-1] is not block:
            block.pin()
            blocks.append(block)
        exchange.peer.note_applying(exchange.size_bytes)
        sinks = exchange.sinks
        if sinks in self.waiting:
            self.waiting[sinks].append(exchange)
        elif sinks:
            self.waiting[sinks] = [exchange]
            self.log.call_when_durable(sinks, partial(self.note_commit, sinks))

    def note_write(self, failure: BaseException | None) -> None:
        """The write batch was written, or failed as a whole."""
        self.is_written = True
        self._close_if_answered()
        for block in self.blocks:
            block.unpin()
        requests = 0
        for exchange in self.exchanges:
            requests += 1 + exchange.more
            if exchange.acks == 1 and not exchange.sinks:
                _notify(exchange, failure)
            elif failure is not None and exchange.acks == 0:
                exchange.peer.abort("a produce with acks=0 could not be written")
            exchange.peer.note_applied(exchange.size_bytes)
        self.counts.produces += requests
        if failure is not None:
            self.counts.count_error("Produce", why(failure)[0])
        for exchange in self.exchanges:
            exchange.peer.flush()

    def note_commit(self, sinks: tuple[Sink, ...], failure: BaseException | None) -> None:
        """The batches that wait for these sinks are committed, or will never be."""
        waiting = self.waiting.pop(sinks)
        if isinstance(failure, FailedPartitions):
            for exchange in waiting:
                for partition in failure.partitions:
                    exchange.answer_with_error(partition, failure)
            failure = None
        self._close_if_answered()
        for exchange in waiting:
            _notify(exchange, failure)
            exchange.peer.collect()
        for exchange in waiting:
            exchange.peer.flush()

    def _close_if_answered(self) -> None:
        if not self.waiting:
            self.open.pop(self, None)

    def answer_resigned(self, partition: Partition, hints: LeaderHints) -> None:
        """Answer unanswered batches of a resigned partition with NOT_LEADER_OR_FOLLOWER. Nothing is
        answered yet: the others still wait."""
        why = partition.refusal()
        unanswered = self.exchanges
        if self.is_written:
            unanswered = list(chain(*self.waiting.values()))
        for exchange in unanswered:
            if exchange.answer_resigned(partition, why, hints) and not exchange.acks:
                exchange.peer.abort("the leader of a produce with acks=0 has changed")


def _notify(exchange: Waiting, failure: BaseException | None) -> None:
    """Build a response. A defect there closes one connection; others of the write batch get their
    responses."""
    try:
        exchange.respond(failure)
    except Exception:
        peer = exchange.peer
        logger.exception("encoding the response to a Produce of client %s failed", peer.client_id)
        peer.abort("the answer to a Produce cannot be made")


def why(failure: BaseException) -> tuple[int, str | None, tuple[tuple[int, str], ...]]:
    """Return (code, message, record errors) of a failure."""
    if isinstance(failure, KafkaError):
        return int(failure.code), failure.message, tuple(failure.record_errors)
    return int(code_of(failure)), None, ()


def build_failure_fields(
    failure: BaseException,
) -> tuple[int, int, int, int, str | None, tuple[tuple[int, str], ...]]:
    """Return a ProduceResult of a failure, after topic and index."""
    code, message, records = why(failure)
    return code, -1, -1, -1, message, records


def fail_result(result: ProduceResult, failure: BaseException) -> ProduceResult:
    """Return a result with the failure of its write batch."""
    return result if result[2] else (result[0], result[1], *build_failure_fields(failure))
