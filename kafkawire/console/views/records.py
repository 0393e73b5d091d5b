"""Records of a topic from an offset or time on, within bounds, with a report of what was searched.

A reader has a budget of bytes, seconds and records. The report names the offsets of each partition
that were searched and why the search ended, and has the positions at which it continues, so an
empty result is never mistaken for an empty topic.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.fetching import Fetched, fetch, find_delivered_batches
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    Partition,
    leaders,
    list_offsets,
)
from kafkawire.codec.batches import TRANSACTIONAL, BatchHead, Record, header_bytes, records
from kafkawire.codec.compression import name_codec
from kafkawire.codec.errors import KafkaError
from kafkawire.console.views.record_filter import RecordTest, compile_test
from kafkawire.plural import count
from kafkawire.units import size

MAX_RECORDS = 500
"""Records of one page."""
MAX_PARTITIONS = 200
"""Partitions that one page reads, a request for each; the positions of all are in the URL of the
next page."""
BUDGET_BYTES = 32 << 20
"""Bytes of one page: fetched, and of the records that are kept, which may be compressed."""
BUDGET_S = 5.0
"""Time of one page; the reader may continue."""
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 64 << 10, 1 << 20
"""Bytes of the first Fetch of a partition, and of later ones, each four times the one before: a
page without a filter needs few records."""
WAIT_MS = 500
"""How long a broker may take to read from its remote tier, per Fetch."""
FIRST_WINDOW = 1
"""Offsets that a search from the end reads first in each partition: its last batch comes whole."""
WIDER = 4
ENDED = "ended"
MAX_OUTCOMES = 20
"""Batches of a page whose transactions' outcomes are requested, a Fetch for each."""
MAX_OFFSETS = 2**63 - 1
MAX_NEEDLE = 1000
"""Characters of a text to search for."""


class RecordOrder(StrEnum):
    """Whether a search goes from a position to newer records, or from the end to older ones."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Records to read. `positions`: by partition, the first offset (FORWARD), or the one after the
    last (BACKWARD); others begin at `time_ms`, or at the log start or end. `partition`: only this
    one. `key`, `text`, `filter`, `pattern`: see compile_test."""

    topic: str
    order: RecordOrder = RecordOrder.BACKWARD
    partition: int | None = None
    positions: Mapping[int, int] = field(default_factory=dict)
    time_ms: int | None = None
    text: str = ""
    key: str | None = None
    limit: int = 50
    filter: str = ""
    pattern: str = ""

    def test(self) -> RecordTest:
        """Return the test of what the query keeps. FilterRefused."""
        return compile_test(self.key, self.text, self.filter, self.pattern)


class FoundRecord(NamedTuple):
    """A record and the batch that it is in: its offsets, codec and size. `transaction`: "open",
    "committed", "aborted"; "ended" if it was not asked which; empty: in none."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    batch: tuple[int, int]
    codec: str
    batch_bytes: int
    producer_id: int
    producer_epoch: int = -1
    transaction: str = ""


class SearchedRange(NamedTuple):
    """The offsets [first, end) of a partition that were searched, of those from `log_start` to
    `log_end`; `error`: why it could not be read further."""

    partition: int
    first: int
    end: int
    log_start: int
    log_end: int
    error: str = ""


class RecordPage(NamedTuple):
    """Matching records, oldest first (FORWARD) or newest first, and the report. `stopped`: why the
    search ended; `more`: positions at which it continues, empty if there is nothing left."""

    records: Sequence[FoundRecord]
    searched: Sequence[SearchedRange]
    stopped: str
    more: Mapping[int, int]
    offsets: int
    fetched_bytes: int
    seconds: float

    @property
    def sentence(self) -> str:
        """Return what was searched, and why the search ended."""
        number = count(len(self.records), "match", "matches")
        if len(self.searched) == 1:
            (one,) = self.searched
            where = (
                f"offsets {one.first:,} to {one.end:,} of {one.log_start:,} to {one.log_end:,} in "
                f"partition {one.partition}"
            )
        else:
            total = sum(each.log_end - each.log_start for each in self.searched)
            where = f"{self.offsets:,} of {total:,} offsets in {len(self.searched):,} partitions"
        return (
            f"Searched {where}: {number}, {size(self.fetched_bytes)} read in "
            f"{self.seconds:.2f} s; stopped because {self.stopped}."
        )


@dataclass(slots=True)
class _Span:
    """The part of a partition that is left to search, [low, high)."""

    partition: int
    node: int
    low: int
    high: int
    log_start: int
    log_end: int
    window: int = FIRST_WINDOW
    error: str = ""
    found: list[FoundRecord] = field(default_factory=list)
    first: int = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.last = self.low, self.high

    @property
    def done(self) -> bool:
        return bool(self.error) or self.low >= self.high


@dataclass(slots=True)
class _Part:
    """The result of one Fetch: the offset of its first batch, the offset after what was searched,
    and the records that match."""

    base: int
    after: int
    found: list[FoundRecord]


class _Spent(Exception):
    """The budget is used up; the text says which."""


class _Reader:
    """Reads within the budget of one page."""

    def __init__(
        self, cluster: Cluster, query: RecordQuery, clock: Callable[[], float], budget_bytes: int
    ) -> None:
        self.cluster = cluster
        self.query = query
        self.fetched = self.kept = 0
        self._clock = clock
        self._begun = clock()
        self._budget = budget_bytes
        self._matches = query.test()

    @property
    def seconds(self) -> float:
        return self._clock() - self._begun

    def read(self, span: _Span, at: int, end: int, most: int) -> Iterator[_Part]:
        """Yield what [at, end) has, Fetch by Fetch, until `most` records match; without end for
        all. _Spent; ClientError."""
        chunk = MIN_CHUNK_BYTES
        while at < end and most > 0:
            self._check()
            place = self.query.topic, span.partition
            got = fetch(self.cluster, span.node, place, at, WAIT_MS, max_bytes=chunk)
            self.fetched += len(got.records)
            chunk = min(4 * chunk, MAX_CHUNK_BYTES)
            heads = [head for _, head in got.batches()]
            if not heads:
                if got.high_watermark <= at:  # the end of the log was cut meanwhile
                    return
                continue  # a remote tier answers later
            part = _Part(heads[0].base_offset, heads[-1].last_offset + 1, [])
            for record, head in self._records(got):
                if self._matches(record) and record.offset < end:
                    found = _found_record(span.partition, record, head, got.last_stable)
                    part.found.append(found)
                    self.kept += len(record.value or b"") + len(record.key or b"")
                    if len(part.found) >= most:
                        part.after = record.offset + 1
                        break
            most -= len(part.found)
            yield part
            at = part.after

    def _records(self, got: Fetched) -> Iterator[tuple[Record, BatchHead]]:
        for position, head in find_delivered_batches(got):
            if not got.sound(position, head):
                raise ClientError(f"the batch at offset {head.base_offset} is damaged")
            try:
                for record in records(got.records, position):
                    yield record, head
            except KafkaError as error:
                raise ClientError(f"the batch at offset {head.base_offset}: {error}") from None

    def _check(self) -> None:
        """Raise _Spent if the budget is used up."""
        used = max(self.fetched, self.kept)
        if used >= self._budget:
            raise _Spent(f"{used / (1 << 20):.1f} MiB were read, the bound of one page")
        if self.seconds >= BUDGET_S:
            raise _Spent(f"{BUDGET_S:.0f} s have passed, the bound of one page")


def _find_transactions(
    cluster: Cluster, topic: str, nodes: Mapping[int, int], kept: list[FoundRecord]
) -> list[FoundRecord]:
    """Return the records with the outcomes of their transactions, of MAX_OUTCOMES batches. `nodes`:
    the leader of each partition."""
    outcomes: dict[tuple[int, int], str] = {}
    for each in kept:
        place = each.partition, each.batch[0]
        if each.transaction == ENDED and place not in outcomes and len(outcomes) < MAX_OUTCOMES:
            outcomes[place] = _outcome(cluster, topic, nodes[each.partition], each)
    return [
        each._replace(transaction=outcomes.get((each.partition, each.batch[0]), ENDED))
        if each.transaction == ENDED
        else each
        for each in kept
    ]


def _outcome(cluster: Cluster, topic: str, node: int, record: FoundRecord) -> str:
    """Return how the transaction of a record ended: an aborted one of its producer that overlaps
    the batch, and began before its end, is its own."""
    first = record.batch[0]
    try:
        got = fetch(
            cluster, node, (topic, record.partition), first, max_bytes=1, isolation=READ_COMMITTED
        )
    except ClientError:
        return ENDED
    aborted = any(
        producer == record.producer_id and began <= first for producer, began in got.aborted
    )
    return "aborted" if aborted else "committed"


def read_records(
    cluster: Cluster,
    query: RecordQuery,
    clock: Callable[[], float] = time.monotonic,
    budget_bytes: int = BUDGET_BYTES,
) -> RecordPage:
    """Return a page of records. ClientError for an unknown topic or partition, or if the broker
    does not answer; failures of single partitions are in the report."""
    spans = _spans(cluster, query)
    reader = _Reader(cluster, query, clock, budget_bytes)
    forward = query.order is RecordOrder.FORWARD
    stopped = ""
    try:
        (_read_forward if forward else _read_backward)(reader, spans)
    except _Spent as spent:
        stopped = str(spent)
    kept = _merge(query, spans)
    nodes = {span.partition: span.node for span in spans}
    if any(each.transaction == ENDED for each in kept):
        kept = _find_transactions(cluster, query.topic, nodes, kept)
    if not stopped:
        stopped = _reason(query, spans, len(kept))
    more = {
        span.partition: span.low if forward else span.high
        for span in spans
        if not span.error and span.low < span.high
    }
    searched = [
        SearchedRange(
            span.partition,
            span.first if forward else span.high,
            span.low if forward else span.last,
            span.log_start,
            span.log_end,
            span.error,
        )
        for span in spans
    ]
    return RecordPage(
        kept,
        searched,
        stopped,
        # With nothing left in one partition its position is its end, so it is not read again.
        {each.partition: each.end if forward else each.first for each in searched} if more else {},
        sum(each.end - each.first for each in searched),
        reader.fetched,
        reader.seconds,
    )


def _reason(query: RecordQuery, spans: Sequence[_Span], number: int) -> str:
    if number >= query.limit and not all(span.done for span in spans):
        return f"{number} records were found, as many as one page has"
    if any(span.error for span in spans):
        return "some partitions cannot be read"
    end = "end" if query.order is RecordOrder.FORWARD else "start"
    return f"the {end} of the log was reached"


def _spans(cluster: Cluster, query: RecordQuery) -> list[_Span]:
    """Return what is to be searched of each partition."""
    led_by = leaders(cluster, [query.topic])
    if query.partition is not None:
        wanted: Partition = query.topic, query.partition
        if wanted not in led_by:
            raise ClientError(f"topic {query.topic} has no partition {query.partition}")
        led_by = {wanted: led_by[wanted]}
    if len(led_by) > MAX_PARTITIONS:
        raise ClientError(
            f"topic {query.topic} has {len(led_by):,} partitions, of which a page reads "
            f"{MAX_PARTITIONS:,}: choose one"
        )
    starts = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
    ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
    at_time: Mapping[Partition, int] = {}
    if query.time_ms is not None:
        at_time = list_offsets(cluster, dict.fromkeys(led_by, query.time_ms), led_by)
    found = []
    for place, node in sorted(led_by.items()):
        start, end = starts.get(place, 0), ends.get(place, 0)
        at = query.positions.get(place[1])
        if at is None and place in at_time:
            at = at_time[place] if at_time[place] >= 0 else end
        low, high = start, end
        if at is not None:
            at = min(max(at, start), end)
            low, high = (at, end) if query.order is RecordOrder.FORWARD else (start, at)
        span = _Span(place[1], node, low, high, start, end)
        if place not in starts or place not in ends:
            span.error = "it has no leader now"
        found.append(span)
    return found


def _read_forward(reader: _Reader, spans: Sequence[_Span]) -> None:
    """Read each partition until it has as many records as the page: the first of all are in
    them."""
    for span in spans:
        try:
            for part in reader.read(span, span.low, span.high, reader.query.limit):
                span.found += [each for each in part.found if each.offset >= span.low]
                span.low = min(part.after, span.high)
        except ClientError as error:
            span.error = str(error)


def _read_backward(reader: _Reader, spans: Sequence[_Span]) -> None:
    """Read windows before the ends of all partitions, wider ones while there are too few
    records. A window that is not read to its end is not counted as searched."""
    limit = reader.query.limit
    while open_ones := [span for span in spans if not span.done and len(span.found) < limit]:
        for span in open_ones:
            low, before = max(span.low, span.high - span.window), reader.fetched
            try:
                parts = list(reader.read(span, low, span.high, MAX_OFFSETS))
            except ClientError as error:
                span.error = str(error)
                continue
            if parts:  # the first batch may begin before the window, and was read whole
                low = max(span.low, min(low, parts[0].base))
            found = [each for part in parts for each in part.found if each.offset >= low]
            span.found += reversed(found)
            # A window is at most a quarter of the budget, as far as the last one shows.
            per_offset = max(1, (reader.fetched - before) // max(1, span.high - low))
            span.window = max(1, min(span.window * WIDER, BUDGET_BYTES // (4 * per_offset)))
            span.high = low


def _merge(query: RecordQuery, spans: Sequence[_Span]) -> list[FoundRecord]:
    """Return the records of the page, merged by timestamp; within a partition offsets decide, since
    timestamps may go back. What does not fit counts as not searched."""
    forward = query.order is RecordOrder.FORWARD
    sign = 1 if forward else -1
    merged = heapq.merge(*(span.found for span in spans), key=lambda each: sign * each.timestamp)
    kept = list(islice(merged, query.limit))
    counts = Counter(each.partition for each in kept)
    for span in spans:
        for left in span.found[counts[span.partition] :][:1]:
            span.error = ""  # it is after what fits
            if forward:
                span.low = left.offset
            else:
                span.high = left.offset + 1
    return kept


def _found_record(partition: int, record: Record, head: BatchHead, last_stable: int) -> FoundRecord:
    transaction = ""
    if head.attributes & TRANSACTIONAL:
        transaction = ENDED if record.offset < last_stable else "open"
    return FoundRecord(
        partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        [(header_bytes(name), value) for name, value in record.headers],
        (head.base_offset, head.last_offset),
        name_codec(head.codec),
        head.size_bytes,
        head.producer_id,
        head.producer_epoch,
        transaction,
    )
