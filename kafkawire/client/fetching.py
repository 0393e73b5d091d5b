"""Reading record batches: one partition per Fetch request, by name, without a session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.offsets import READ_UNCOMMITTED, Partition
from kafkawire.codec.batches import (
    CONTROL,
    CRC_FROM,
    TRANSACTIONAL,
    BatchHead,
    Record,
    iter_batches,
    records,
)
from kafkawire.codec.control import ABORT, read_marker
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

FETCH = 1
NAMES_UNTIL = 12
"""The last version of Fetch that identifies topics by name; later ones use ids."""
PART_BYTES = 4 << 20
"""Maximum bytes per Fetch."""
SLOW_S = 60.0
"""How long records below the end of a partition may take to come. A broker that reads them from a
remote tier answers without records meanwhile (remote.fetch.max.wait.ms)."""
THROTTLED_S = 600.0
"""How long a quota may keep a client from any records."""
PAUSE_S = 0.05
"""Between Fetches that return nothing at once."""


@dataclass(slots=True)
class Fetched:
    """Result of one Fetch of a partition. `aborted`: (producer id, first offset) of aborted
    transactions with records in it, if READ_COMMITTED was requested."""

    log_start: int
    high_watermark: int
    last_stable: int
    records: Buffer
    aborted: list[tuple[int, int]] = field(default_factory=list)

    def batches(self) -> Iterator[tuple[int, BatchHead]]:
        """Return (position, head) of each complete batch. ClientError if the bytes are not
        batches."""
        try:
            yield from iter_batches(self.records)
        except KafkaError as error:
            raise ClientError(f"the broker sent invalid record batches: {error}") from None

    def sound(self, position: int, head: BatchHead) -> bool:
        """Return True if the CRC of a batch matches."""
        body = memoryview(self.records)[position + CRC_FROM : position + head.size_bytes]
        return crc32c(body) == head.crc


def find_delivered_batches(got: Fetched) -> Iterator[tuple[int, BatchHead]]:
    """Return (position, head) of each batch that a consumer delivers: no control batches, none of
    the aborted transactions (Kafka: CompletedFetch.nextFetchedRecord)."""
    waiting = sorted((first, producer_id) for producer_id, first in got.aborted)
    dropped: set[int] = set()
    for position, head in got.batches():
        while waiting and waiting[0][0] <= head.last_offset:
            dropped.add(waiting.pop(0)[1])
        if head.attributes & CONTROL:
            if (
                head.producer_id in dropped
                and read_marker(got.records, position, head).kind == ABORT
            ):
                dropped.discard(head.producer_id)
        elif not (head.attributes & TRANSACTIONAL and head.producer_id in dropped):
            yield position, head


def sound_records(got: Fetched, offset: int) -> Iterator[Record]:
    """Return the records from `offset` on, without control records and those of aborted
    transactions in `got`. ClientError for a damaged batch."""
    for position, head in find_delivered_batches(got):
        if not got.sound(position, head):
            raise ClientError(f"the batch at offset {head.base_offset} is damaged: CRC mismatch")
        try:
            for record in records(got.records, position):
                if record.offset >= offset:
                    yield record
        except KafkaError as error:
            raise ClientError(f"the batch at offset {head.base_offset}: {error}") from None


def fetch_next(
    cluster: Cluster,
    node: int,
    partition: Partition,
    offset: int,
    *,
    max_bytes: int = PART_BYTES,
    isolation: int = READ_UNCOMMITTED,
) -> tuple[Fetched, int]:
    """Fetch batches at an offset below the end of the partition; return the offset after them, too.

    ClientError if there are none, also not within SLOW_S.
    """
    until = time.monotonic() + SLOW_S
    while True:
        got = fetch(cluster, node, partition, offset, max_bytes=max_bytes, isolation=isolation)
        after = max((head.last_offset + 1 for _, head in got.batches()), default=offset)
        if after > offset:
            return got, after
        if time.monotonic() >= until:
            raise ClientError(f"{partition[0]}:{partition[1]} has no batch at offset {offset}")
        time.sleep(PAUSE_S)


def fetch(
    cluster: Cluster,
    node: int,
    partition: Partition,
    offset: int,
    wait_ms: int = 0,
    *,
    max_bytes: int = PART_BYTES,
    isolation: int = READ_UNCOMMITTED,
) -> Fetched:
    """Fetch batches from the one with `offset` on; wait up to `wait_ms` for one, and longer while a
    quota throttles this client. ClientError.

    Returns at most `max_bytes`, of which the last batch may be truncated, or one whole larger batch
    (KIP-74).
    """
    from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    topic, index = partition
    row = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
    asked = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )
    until = time.monotonic() + THROTTLED_S
    while True:
        answer = cluster.node(node).request(FETCH, asked, at_most=NAMES_UNTIL)
        check(f"Fetch of {topic}-{index}", answer.error_code)
        if answer.responses:
            break
        if time.monotonic() >= until:
            raise ClientError(f"{topic}:{index} is not read: a quota throttles this client")
        time.sleep(max(PAUSE_S, min(answer.throttle_time_ms / 1000, until - time.monotonic())))
    got = answer.responses[0].partitions[0]
    check(f"{topic}-{index} at offset {offset}", got.error_code)
    return _read_answer(got)


def fetch_partitions(
    cluster: Cluster,
    node: int,
    positions: Mapping[Partition, int],
    wait_ms: int,
    *,
    max_bytes: int = PART_BYTES,
    isolation: int = READ_UNCOMMITTED,
) -> dict[Partition, Fetched | BrokerError]:
    """Fetch batches of several partitions that the broker `node` leads, from their positions on;
    wait up to `wait_ms` for one. Partitions are served in the order given, until there are
    `max_bytes`; the others are empty, or left out. ClientError if all fails."""
    from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    topics: dict[str, FetchTopic] = {}
    for (topic, index), offset in positions.items():
        rows = topics.setdefault(topic, FetchTopic(topic=topic, partitions=[])).partitions
        rows.append(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        )
    asked = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=list(topics.values()),
    )
    answer = cluster.node(node).request(FETCH, asked, at_most=NAMES_UNTIL)
    check("Fetch", answer.error_code)
    found: dict[Partition, Fetched | BrokerError] = {}
    for response in answer.responses:
        for row in response.partitions:
            what = f"{response.topic}-{row.partition_index}"
            found[response.topic, row.partition_index] = (
                BrokerError(what, row.error_code) if row.error_code else _read_answer(row)
            )
    return found


def _read_answer(row: Any) -> Fetched:
    aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
    records = b"" if row.records is None else row.records
    return Fetched(
        row.log_start_offset, row.high_watermark, row.last_stable_offset, records, aborted
    )
