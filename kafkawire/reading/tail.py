"""Read records that are in no segment yet over the Kafka protocol, with blocking Fetches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.fetching import Fetched, fetch
from kafkawire.client.offsets import EARLIEST, READ_COMMITTED, leaders, list_offsets
from kafkawire.codec.batches import CONTROL, BatchHead, records
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.reading.files.broker_queries import TRIES, connect, isolation_level, passes, pause
from kafkawire.reading.model.source import COMPACTED, Account, DamagedData, Source, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.decode.port import RangeDecoder

FETCH_BYTES = 8 << 20
"""Maximum bytes of a Fetch; a larger single batch is returned whole nevertheless (KIP-74)."""
WAIT_MS = 100
QUIET_TRIES = 4
"""Fetches below the high watermark without a batch until the range is considered empty."""
LATE_TRIES = 50
"""Fetches at an end that was higher before: five seconds, for a leader that has just moved."""
OFFSET_MAX = (1 << 63) - 1
_CONTROL_KEY = Struct(">hh")
_ABORT = 0

Lost = Callable[[int, str], None]
"""Called when offsets from the cursor up to this one are lost, with the reason. May raise
DataLoss."""
Damaged = Callable[[DamagedData, Buffer], None]
"""Called with unreadable bytes. Raises, or accounts for the offsets."""


class Prefetch(NamedTuple):
    """A Fetch that was sent ahead."""

    place: tuple[str, int]
    offset: int
    response: Future[Fetched]


class LiveTail:
    """Partitions of the cluster at a source's bootstrap servers; connects on first use."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._level = isolation_level(source)
        self._cluster: Cluster | None = None
        self._leaders: dict[tuple[str, int], int] = {}
        self._coming: Prefetch | None = None
        self._thread: ThreadPoolExecutor | None = None

    def close(self) -> None:
        self._take_coming()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None
        self._leaders.clear()

    def read(
        self, decoder: RangeDecoder, account: Account, upto: int, lost: Lost, damaged: Damaged
    ) -> Iterator[pa.RecordBatch]:
        """Decode from the decoder's cursor at least to `upto`. Deleted offsets are reported with
        `lost`."""
        topic, partition = account.range[:2]
        quiet = 0
        while (cursor := decoder.cursor) < upto:
            got = self._fetch_or_lost((topic, partition), cursor, upto, lost)
            if got is None:
                continue
            found = _whole(got, f"{topic}-{partition}")
            batches = [(at, head) for at, head in found if head.base_offset < upto]
            if batches:
                after = batches[-1][1].last_offset + 1
                if after < upto:
                    self._fetch_ahead((topic, partition), after)
                decoder.start_range(account, _list_aborted(got, batches))
                yield from self._decode(decoder, got, batches, damaged)
            elif found:
                decoder.skip(upto, COMPACTED)
            if decoder.cursor > cursor:
                quiet = 0
                continue
            quiet += 1
            if self._end(got) < cursor:
                time.sleep(WAIT_MS / 1000)  # the broker does not wait above the last stable offset
            if self._end(got) >= upto and quiet >= QUIET_TRIES:
                decoder.skip(upto, COMPACTED)
            elif quiet >= LATE_TRIES:
                lost(upto, f"the log ends at {self._end(got)} now")

    def _fetch_or_lost(
        self, place: tuple[str, int], cursor: int, upto: int, lost: Lost
    ) -> Fetched | None:
        """Return fetched data at the cursor; None if it is lost, and accounted for."""
        for attempt in range(1, TRIES + 1):
            try:
                try:
                    coming = self._take_coming(place, cursor)
                    return coming.result() if coming else self._fetch(place, cursor)
                except BrokerError as error:
                    if self._is_lost(error.code, place, cursor, upto, lost):
                        return None
                    raise
            except ClientError as error:
                self.close()
                if attempt == TRIES or not passes(error):
                    raise SourceError(str(error)) from None
            pause(attempt)
        raise AssertionError("the last attempt raises")

    def _end(self, got: Fetched) -> int:
        """Return the end of the readable records."""
        return got.last_stable if self._level == READ_COMMITTED else got.high_watermark

    def _fetch(self, place: tuple[str, int], offset: int) -> Fetched:
        cluster = self._connect()
        if place not in self._leaders:
            self._leaders.update(leaders(cluster, [place[0]]))
        node = self._leaders.get(place, -1)
        if node < 0:
            raise BrokerError(f"{place[0]}-{place[1]}", ErrorCode.LEADER_NOT_AVAILABLE)
        return fetch(
            cluster, node, place, offset, WAIT_MS, max_bytes=FETCH_BYTES, isolation=self._level
        )

    def _fetch_ahead(self, place: tuple[str, int], offset: int) -> None:
        """Fetch the data after a response while that is decoded: at most one response is buffered.
        Nothing else uses the connections meanwhile."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "kafkawire-fetch")
        response = self._thread.submit(self._fetch, place, offset)
        self._coming = Prefetch(place, offset, response)

    def _take_coming(
        self, place: tuple[str, int] | None = None, offset: int = -1
    ) -> Future[Fetched] | None:
        """Return the prefetched response if it is for this position; the prefetch has ended in any
        case."""
        if self._coming is None:
            return None
        found, self._coming = self._coming, None
        wait([found.response])  # bounded by the connection's time limit
        return found.response if (found.place, found.offset) == (place, offset) else None

    def _connect(self) -> Cluster:
        if self._cluster is None:
            self._cluster = connect(self._source)
        return self._cluster

    def _is_lost(
        self, code: int, place: tuple[str, int], cursor: int, upto: int, lost: Lost
    ) -> bool:
        """Return True if an error means that records are deleted; they are then accounted for."""
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            lost(upto, "the topic is gone")
            return True
        if code != ErrorCode.OFFSET_OUT_OF_RANGE:
            return False
        start = list_offsets(self._connect(), {place: EARLIEST}, self._leaders).get(place, -1)
        if start > cursor:
            lost(min(start, upto), f"the log starts at {start} now")
        else:
            lost(upto, "the log ends before it now")
        return True

    def _decode(
        self,
        decoder: RangeDecoder,
        got: Fetched,
        batches: Sequence[tuple[int, BatchHead]],
        damaged: Damaged,
    ) -> Iterator[pa.RecordBatch]:
        at, last = batches[-1]
        view = memoryview(got.records)[: at + last.size_bytes]
        after = last.last_offset + 1
        while len(view):
            try:
                yield from decoder.decode_batches(view, check_crc=True, upto=after)
                return
            except DamagedData as error:
                start, stop = decoder.broken
                damaged(error, view[start:stop])
                view = view[stop:]


def _whole(got: Fetched, name: str) -> list[tuple[int, BatchHead]]:
    """Yield (position, header) of the whole batches of a response."""
    try:
        found = list(got.batches())
    except ClientError as error:
        raise SourceError(f"{name}: {error}") from None
    if not found and len(memoryview(got.records)):
        raise SourceError(f"{name}: the broker sent a part of a batch only")
    return found


def _list_aborted(got: Fetched, batches: Sequence[tuple[int, BatchHead]]) -> list[Aborted]:
    """Return the aborted transactions of a response. One ends with the next marker of its producer,
    which may be in a later response."""
    if not got.aborted:
        return []
    markers = [
        (head.producer_id, head.base_offset)
        for at, head in batches
        if head.attributes & CONTROL and _aborts(got.records, at)
    ]
    return [
        Aborted(
            producer,
            first,
            min((at for who, at in markers if who == producer and at >= first), default=OFFSET_MAX),
        )
        for producer, first in got.aborted
    ]


def _aborts(data: Buffer, at: int) -> bool:
    """Return True if a control batch aborts a transaction (Kafka: ControlRecordType)."""
    try:
        key = next(records(data, at)).key or b""
    except (KafkaError, StopIteration):
        return False
    return len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT
