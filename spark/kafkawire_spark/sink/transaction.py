"""The driver's commit: one transaction with all staged batches and the number of the micro-batch.

Batches and progress become visible together, or not at all: a driver that is killed at any point
repeats the micro-batch, and finds one or the other.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kafkawire.client.admin import create_topic
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.offsets import Partition, fetch_committed_offsets, leaders
from kafkawire.client.producer import ProduceResult, append
from kafkawire.client.transactions import (
    SEQUENCES,
    TransactionalProducer,
    add_offsets,
    add_partitions,
    commit_offsets,
    end,
    init_producer,
)
from kafkawire.codec.errors import ErrorCode
from kafkawire.reading.files.broker_queries import BOOTSTRAP, passes, pause
from kafkawire_spark.sink.options import SinkError, SinkOptions
from kafkawire_spark.sink.staging import StagedBatch, StagedPart, load

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

logger = logging.getLogger("kafkawire_spark")


WITHIN_S = 60.0
"""How long a request is repeated: a broker restarts, or an earlier transaction is completed, within
this time."""
LONGEST_PAUSE = 4
"""The number of an attempt: from then on the pause between two is the same, 1.6 s."""
FENCED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}

T = TypeVar("T")


class SinkConnection:
    """A cluster, connected on first use and again after a failure. Every failure is a SinkError."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._cluster: Cluster | None = None
        self._leaders: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """Close all connections; the next request opens them again."""
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None
        self._leaders = {}

    def run_with_retries(self, work: Callable[[Cluster], T], within_s: float = WITHIN_S) -> T:
        """Return the result of `work`, which is repeated after errors that may pass, as long as
        `within_s` seconds have not passed."""
        until = time.monotonic() + within_s
        attempt = 0
        while True:
            try:
                if self._cluster is None:
                    self._cluster = Cluster(self._bootstrap, BOOTSTRAP)
                return work(self._cluster)
            except ClientError as error:
                self.close()
                if not passes(error) or time.monotonic() >= until:
                    raise SinkError(_sentence(error)) from None
            attempt += 1
            pause(min(attempt, LONGEST_PAUSE))

    def leader(self, cluster: Cluster, place: tuple[str, int]) -> int:
        """Return the leader of a partition. Raises BrokerError."""
        if place not in self._leaders:
            self._leaders.update(leaders(cluster, [place[0]]))
        node = self._leaders.get(place, -1)
        if node < 0:
            del self._leaders[place]
            raise BrokerError(f"{place[0]}-{place[1]}", ErrorCode.LEADER_NOT_AVAILABLE)
        return node

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of an existing topic."""

        def work(cluster: Cluster) -> int:
            row = cluster.metadata([topic]).topics[0]
            check(f"topic {topic}", row.error_code)
            return len(row.partitions)

        return self.run_with_retries(work)

    def create(self, topic: str) -> None:
        """Create a topic of one partition, unless it exists, and wait until it has a leader."""

        def work(cluster: Cluster) -> None:
            row = cluster.metadata([topic]).topics[0]
            if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check(f"topic {topic}", row.error_code)
                self.leader(cluster, (topic, 0))
                return
            try:
                create_topic(cluster, topic, 1, {})
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            raise BrokerError(f"topic {topic}", ErrorCode.LEADER_NOT_AVAILABLE)  # scan again

        self.run_with_retries(work)


def _sentence(error: ClientError) -> str:
    if isinstance(error, BrokerError) and error.code in FENCED:
        return (
            f"{error} (another writer with the same transactionalId has started, or the "
            "transaction took longer than kafka.transaction.timeout.ms)"
        )
    return str(error)


REQUEST_BYTES = 16 << 20
"""Maximum bytes of a Produce request with several batches, a sixth of Kafka's default of
socket.request.max.bytes."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """A batch, for a commit that happens once: `number` of this transactional id, None for a batch
    that is not repeated. `query`: id of the streaming query, "" for none."""

    transactional_id: str
    number: int | None = None
    query: str = ""


class SinkTransaction:
    """The transaction of one batch. `place`: where its files are staged."""

    def __init__(
        self,
        connection: SinkConnection,
        options: SinkOptions,
        identity: BatchIdentity,
        place: Place | None,
    ) -> None:
        self._connection, self._options = connection, options
        self._identity, self._place = identity, place
        self._sequences: dict[Partition, int] = {}

    def commit(self, parts: Sequence[StagedPart]) -> bool:
        """Write all parts; False if an earlier attempt has. Raises SinkError, PlaceError: nothing
        is visible then, unless the outcome of the last request is unknown; a repeated commit of the
        same number finds out."""
        identity, options = self._identity, self._options
        if identity.number is None and not parts:
            return True
        if identity.number is not None:
            self._connection.create(options.progress_topic)
        # The new epoch of the transactional id fences a driver that was presumed dead, and aborts
        # what it left open. So from here the recorded progress is final.
        producer = self._connection.run_with_retries(
            lambda cluster: init_producer(cluster, identity.transactional_id, options.timeout_ms)
        )
        if identity.number is not None and self._is_committed(identity.number):
            return False
        try:
            self._add(producer, parts)
            for part in parts:
                self._write(producer, part)
            if identity.number is not None:
                self._record(producer, identity.number)
            self._connection.run_with_retries(
                lambda cluster: end(cluster, producer, committed=True)
            )
        except BaseException:
            self._abort(producer)
            raise
        return True

    def _is_committed(self, number: int) -> bool:
        """Return True if the recorded progress includes a number. Raises SinkError if that cannot
        be known."""
        who, query = self._identity.transactional_id, self._identity.query
        found = self._connection.run_with_retries(
            lambda cluster: fetch_committed_offsets(cluster, who, stable=True)
        )
        following, owner = found.get((self._options.progress_topic, 0), (None, None))
        if following is None:
            return bool(query) and self._is_before_first(number)
        if (owner or "") != query:
            raise SinkError(
                f"transactionalId={who} has written {following} batches of "
                f"{_describe_query(owner)}, and this is {_describe_query(query)}: use another "
                "transactionalId"
            )
        return number < following

    def _is_before_first(self, number: int) -> bool:
        first = self._options.initial_batch_id or 0
        if number > first:
            who = self._identity.transactional_id
            raise SinkError(
                f"micro-batch {number} may have been written: group {who} has no progress, because "
                "offsets.retention.minutes have passed since, or earlier micro-batches went to "
                f"another sink; initialBatchId={number} writes it, {number + 1} leaves it out"
            )
        return number < first

    def _write(self, producer: TransactionalProducer, part: StagedPart) -> None:
        for wave in waves(part, load(self._place, part)):
            sealed = {}
            for place, (batch, data) in wave.items():
                sealed[place] = bytearray(data)
                sequence = self._sequences[place]
                producer.seal(sealed[place], sequence)
                self._sequences[place] = (sequence + batch.records) % SEQUENCES
            self._send(producer, sealed)

    def _add(self, producer: TransactionalProducer, parts: Sequence[StagedPart]) -> None:
        """Add all partitions to the transaction."""
        places = sorted({(each.topic, each.partition) for part in parts for each in part.batches})
        if places:
            self._connection.run_with_retries(
                lambda cluster: add_partitions(cluster, producer, places)
            )
            self._sequences.update(dict.fromkeys(places, 0))

    def _send(self, producer: TransactionalProducer, wave: Mapping[Partition, bytearray]) -> None:
        """Append batches. One that is sent again has the same sequence, so it is stored once."""
        left = dict(wave)

        def work(cluster: Cluster) -> None:
            by_node: dict[int, dict[Partition, bytearray]] = {}
            for place, data in left.items():
                node = self._connection.leader(cluster, place)
                by_node.setdefault(node, {})[place] = data
            failed: dict[Partition, ProduceResult] = {}
            for node, batches in by_node.items():
                answers = append(cluster, node, batches, transactional_id=producer.transactional_id)
                for place in batches.keys() & answers.keys():
                    if answers[place].code:
                        failed[place] = answers[place]
                    else:
                        del left[place]
            for (topic, partition), answer in failed.items():
                check(f"Produce to {topic}-{partition}", answer.code, answer.message)
            if left:
                raise ClientError(f"the broker did not answer for {len(left)} partitions")

        self._connection.run_with_retries(work)

    def _record(self, producer: TransactionalProducer, number: int) -> None:
        """Record the progress, as part of the transaction."""
        group = self._identity.transactional_id
        offsets = {(self._options.progress_topic, 0): (number + 1, self._identity.query)}
        self._connection.run_with_retries(lambda cluster: add_offsets(cluster, producer, group))
        self._connection.run_with_retries(
            lambda cluster: commit_offsets(cluster, producer, group, offsets)
        )

    def _abort(self, producer: TransactionalProducer) -> None:
        """Try to abort at once, so that readers do not wait for the timeout. Without effect if the
        transaction was committed after all."""
        with contextlib.suppress(SinkError):
            self._connection.run_with_retries(
                lambda cluster: end(cluster, producer, committed=False), within_s=0
            )


def _describe_query(query: str | None) -> str:
    return f"the query {query}, by its checkpoint" if query else "no streaming query"


def waves(
    part: StagedPart, data: memoryview
) -> Iterator[dict[Partition, tuple[StagedBatch, memoryview]]]:
    """Split a part into Produce requests: at most one batch per partition in each, in their
    order."""
    wave: dict[Partition, tuple[StagedBatch, memoryview]] = {}
    size = at = 0
    for batch in part.batches:
        place = batch.topic, batch.partition
        if place in wave or (wave and size + batch.size_bytes > REQUEST_BYTES):
            yield wave
            wave, size = {}, 0
        wave[place] = batch, data[at : at + batch.size_bytes]
        size += batch.size_bytes
        at += batch.size_bytes
    if wave:
        yield wave
