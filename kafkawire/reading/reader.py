"""Read and search the records of a source: by offset, by time, by key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType

from kafkawire.codec.murmur2 import murmur2
from kafkawire.codec.segment.stored import RESOLUTION_MS
from kafkawire.progress import Progress, silent
from kafkawire.reading.files.traffic import ReadCost
from kafkawire.reading.model.records import (
    PartitionBounds,
    RecordConditions,
    TopicRecord,
    UnknownName,
)
from kafkawire.reading.model.source import DamagedData, PartitionRange
from kafkawire.reading.port import WIDER, Backend, OnDamage

Moment = int | datetime
"""Milliseconds since 1970, or a datetime (UTC if it has no zone)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TopicReader:
    """An open source of records; a context manager. Made by `open_bucket`, `open_folder` and
    `open_broker`. Not thread-safe.

    `on_damage`: called with offsets that cannot be read, after which reading continues; without it
    DamagedData is raised. `progress`: called while records are searched. All methods raise
    SourceError; UnknownName, one of these, for a topic or partition that the source does not have.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        on_damage: OnDamage | None = None,
        progress: Progress = silent,
    ) -> None:
        self._backend = backend
        self._on_damage = on_damage
        self._progress = progress

    def topics(self) -> dict[str, int]:
        """Return all topics, internal ones too, with their number of partitions."""
        return dict(sorted(self._backend.topics().items()))

    def partitions(self, topic: str) -> list[PartitionBounds]:
        """Return the offsets of each partition of a topic."""
        return self._backend.bounds(topic)

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | None = None,
        end: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        stored_since: Moment | None = None,
        stored_until: Moment | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield the records of a topic, one partition after another, by offset.

        `start`, `end`: only offsets in [start, end); `since`, `until`: only timestamps in [since,
        until), where reading ends at the first record from `until` on, as in Kafka's consumers.
        `stored_since`, `stored_until`: only records that a broker stored in [stored_since,
        stored_until), to the second; not from a running broker.
        """
        wanted = RecordConditions(None, _ms(since), _ms(until))
        stored = _second(_ms(stored_since)), _ms(stored_until)
        return self._scan(topic, partitions, wanted, start, end, stored)

    def find(
        self,
        topic: str,
        keys: bytes | Collection[bytes | None],
        *,
        partitions: Sequence[int] | None = None,
        start: int | None = None,
        end: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        stored_since: Moment | None = None,
        stored_until: Moment | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield the records with one of these keys (None: records without a key), each as soon as
        it is found; the other arguments and the order are those of `read`."""
        chosen = frozenset([keys] if isinstance(keys, bytes) else keys)
        wanted = RecordConditions(chosen, _ms(since), _ms(until))
        stored = _second(_ms(stored_since)), _ms(stored_until)
        return self._scan(topic, partitions, wanted, start, end, stored)

    def latest(
        self, topic: str, key: bytes, *, partitions: Sequence[int] | None = None
    ) -> TopicRecord | None:
        """Return the last record with a key, found from the ends of partitions backwards: its value
        now in a compacted topic, deleted if that is None. None: there is no such record.

        Of records in several partitions the one with the latest timestamp is returned. The
        partition that Kafka's default partitioner chooses is searched first, then, all together,
        the others, which other producers may have chosen: only what may have a later timestamp.
        `partitions` limits the search.
        """
        every = self._backend.bounds(topic)
        bounds = _choose_partitions(topic, every, partitions)
        likely = _partition_of(key, len(every))
        wanted = RecordConditions(frozenset([key]))
        best = self._last(topic, [each for each in bounds if each.partition == likely], wanted)
        others = [each for each in bounds if each.partition != likely]
        if best is not None:
            later = replace(wanted, since_ms=best.timestamp + 1)
            # A damaged block leaves the offset of a time unknown, and is reported by the search.
            with suppress(DamagedData):
                others = self._in_time(topic, others, later)
        found = self._last(topic, others, wanted)
        if best is None or (found is not None and found.timestamp > best.timestamp):
            return found
        return best

    def unread(self, topic: str) -> list[PartitionBounds]:
        """Return the offsets of a topic that only the journals of a data folder have, and that are
        not read because a broker uses it, or because they cannot be; none for buckets and
        brokers."""
        return self._backend.unread(topic)

    def traffic(self) -> list[ReadCost]:
        """Return requests for records and metadata files, and the bytes of the answers, since the
        source was opened."""
        return self._backend.traffic()

    def close(self) -> None:
        """Close all connections."""
        self._backend.close()

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _scan(
        self,
        topic: str,
        partitions: Sequence[int] | None,
        wanted: RecordConditions,
        start: int | None,
        end: int | None,
        stored: tuple[int | None, int | None],
    ) -> Iterator[TopicRecord]:
        bounds = [
            each._replace(
                start=each.start if start is None else max(each.start, start),
                end=each.end if end is None else min(each.end, end),
            )
            for each in _choose_partitions(topic, self._backend.bounds(topic), partitions)
        ]
        bounds = _clip(self._backend.offsets_for_stored_time, topic, bounds, *stored)
        ranges = [PartitionRange(topic, *each) for each in self._in_time(topic, bounds, wanted)]
        some = [each for each in ranges if each.base < each.end]
        return self._backend.scan(some, wanted, self._on_damage, self._progress)

    def _in_time(
        self, topic: str, bounds: list[PartitionBounds], wanted: RecordConditions
    ) -> list[PartitionBounds]:
        """Return the bounds without the offsets before `since` and from `until` on."""
        times = wanted.since_ms, wanted.until_ms
        return _clip(self._backend.offsets_for_time, topic, bounds, *times)

    def _last(
        self, topic: str, bounds: Sequence[PartitionBounds], wanted: RecordConditions
    ) -> TopicRecord | None:
        """Return the matching record with the latest timestamp among the last ones of partitions,
        found by growing steps from their ends, all partitions together."""
        ranges = dict.fromkeys(PartitionRange(topic, *each) for each in bounds)
        counts = {each: self._backend.tail_offsets(each) for each in ranges}
        ends = {each: each.end for each in ranges}
        total = sum(each.end - each.base for each in ranges)
        found: dict[int, TopicRecord] = {}
        while left := [
            each for each in ranges if each.base < ends[each] and each.partition not in found
        ]:
            steps = []
            done = sum(each.end - ends[each] for each in ranges)
            for each in left:
                count, after = counts[each]
                base = max(each.base, ends[each] - count)
                steps.append(each._replace(base=base, end=ends[each]))
                ends[each], counts[each] = base, (after, after * WIDER)
            progress = _within(self._progress, steps, done, total)
            for record in self._backend.scan(steps, wanted, self._on_damage, progress):
                found[record.partition] = record
        return max(found.values(), key=lambda each: each.timestamp, default=None)


def _clip(
    find: Callable[[str, Sequence[int], int], dict[int, int | None]],
    topic: str,
    bounds: list[PartitionBounds],
    since_ms: int | None,
    until_ms: int | None,
) -> list[PartitionBounds]:
    """Return the bounds from the offsets that `find` returns for the first time up to those for the
    second."""
    indexes = [each.partition for each in bounds if each.start < each.end]
    if since_ms is not None and indexes:
        first = find(topic, indexes, since_ms)
        bounds = [
            each._replace(start=max(each.start, _or(first.get(each.partition), each.end)))
            for each in bounds
        ]
    if until_ms is not None and indexes:
        first = find(topic, indexes, until_ms)
        bounds = [
            each._replace(end=min(each.end, _or(first.get(each.partition), each.end)))
            for each in bounds
        ]
    return bounds


def _choose_partitions(
    topic: str, bounds: list[PartitionBounds], partitions: Sequence[int] | None
) -> list[PartitionBounds]:
    if partitions is None:
        return bounds
    known = {each.partition: each for each in bounds}
    for index in partitions:
        if index not in known:
            raise UnknownName(f"topic {topic!r} has no partition {index}: it has {len(known)}")
    return [known[index] for index in partitions]


def _within(
    progress: Progress, steps: Sequence[PartitionRange], before: int, total: int
) -> Progress:
    """Return the progress of one step of a search, in offsets of the whole search."""
    size = sum(each.end - each.base for each in steps)

    def on_progress(what: str, done: int, of: int) -> None:
        progress("offsets searched", before + size * done // max(1, of), total)

    return on_progress


def _ms(moment: Moment | None) -> int | None:
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(milliseconds=1)
    return moment


def _second(ms: int | None) -> int | None:
    """Return the beginning of a second: what was stored in it may be after `ms`."""
    return None if ms is None else ms // RESOLUTION_MS * RESOLUTION_MS


def _or(offset: int | None, other: int) -> int:
    return other if offset is None else offset


def _partition_of(key: bytes, count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses."""
    return (murmur2(key) & 0x7FFFFFFF) % max(1, count)
