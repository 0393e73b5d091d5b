"""Resolve options to offsets of partitions, by the contents of a catalog.

A stream's offsets are {"topic": {"0": n}}, like those of Spark's connector in its checkpoints: the
next offset to read of each partition.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kafkawire.reading.limits import EARLIEST, LATEST, AtTime, EachAtTime, EachOffset, Limit
from kafkawire.reading.model.source import (
    READ_COMMITTED,
    DataLoss,
    PartitionRange,
    Source,
    SourceError,
)
from kafkawire_spark.source.options import SourceOptions, TopicSubscription

logger = logging.getLogger("kafkawire_spark")

Positions = dict[tuple[str, int], int]
"""By topic and partition, the next offset."""
NAMED = 5
"""Maximum number of topics or partitions named in a sentence."""


class OffsetBounds(Protocol):
    """Bounds of a partition, as kafkawire.reading.catalog.Bounds."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Facts(Protocol):
    """Facts of a topic, as kafkawire.manifest.state.ManifestTopic."""

    @property
    def internal(self) -> bool: ...


class CatalogContents(Protocol):
    """Interface of a catalog as used here."""

    @property
    def source(self) -> Source: ...
    @property
    def topics(self) -> Mapping[str, int]: ...
    def facts(self, topic: str) -> Facts: ...
    def bounds(self, topic: str, partition: int) -> OffsetBounds: ...
    def offsets_for_times(self, wanted: Sequence[tuple[str, int, int]]) -> list[int | None]: ...


def list_subscribed_partitions(
    catalog: CatalogContents, wanted: TopicSubscription
) -> list[tuple[str, int]]:
    """Return the existing partitions of a subscription. Raises SourceError for a missing topic."""
    topics = catalog.topics
    if wanted.pattern:
        matches = re.compile(wanted.pattern).fullmatch
        names = [name for name in topics if matches(name) and not catalog.facts(name).internal]
    else:
        names = list(wanted.names or dict.fromkeys(topic for topic, _ in wanted.partitions))
    for name in names:
        if name not in topics:
            raise SourceError(_no_topic(catalog, name))
    for topic, partition in wanted.partitions:
        if partition >= topics[topic]:
            raise SourceError(
                f"assign has {topic}-{partition}, but {topic} has {topics[topic]} partitions"
            )
    if wanted.partitions:
        return list(wanted.partitions)
    return [(name, partition) for name in sorted(names) for partition in range(topics[name])]


def _no_topic(catalog: CatalogContents, name: str) -> str:
    near = difflib.get_close_matches(name, catalog.topics, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {_some(sorted(catalog.topics))}"
    where = catalog.source.url or catalog.source.bootstrap
    return f"there is no topic {name!r} in {where}{hint}"


def resolve(
    catalog: CatalogContents, limit: Limit, partitions: Sequence[tuple[str, int]], options:
    SourceOptions, *, starting: bool,
) -> Positions:  # fmt: skip
    """Return the position of a limit in each of the partitions, not clipped to existing offsets.
    Raises SourceError."""
    side = "starting" if starting else "ending"
    if isinstance(limit, EachOffset | EachAtTime):
        _check_same(limit.values(), partitions, side)
    strict = starting and not options.no_match_latest
    match limit:
        case EachOffset():
            offsets = limit.values()
        case AtTime():
            times = [(*key, limit.ms) for key in partitions]
            offsets = _at_times(catalog, times, strict=strict)
        case EachAtTime():
            given = limit.values()
            times = [(*key, given[key]) for key in partitions]
            offsets = _at_times(catalog, times, strict=strict)
        case _:
            offsets = dict.fromkeys(partitions, limit.offset)
    found = {}
    for key in partitions:
        ends, offset = catalog.bounds(*key), offsets[key]
        found[key] = {EARLIEST: ends.start, LATEST: ends.end}.get(offset, offset)
    return found


def _at_times(
    catalog: CatalogContents, times: Sequence[tuple[str, int, int]], *, strict: bool
) -> Positions:
    """Return the position of a time in partitions; LATEST if they have no such record, which is a
    SourceError if `strict`."""
    found: Positions = {}
    for (topic, partition, ms), at in zip(times, catalog.offsets_for_times(times), strict=True):
        if at is None and strict:
            raise SourceError(
                f"no record of {topic}-{partition} is of {ms} or later, where reading "
                "begins (startingOffsetsByTimestampStrategy=latest: at the end then)"
            )
        found[topic, partition] = LATEST if at is None else at
    return found


def _check_same(
    given: Mapping[tuple[str, int], int], partitions: Iterable[tuple[str, int]], side: str
) -> None:
    """Check that all partitions are named or none, as in Spark's Kafka connector."""
    there = set(partitions)
    missing, unknown = sorted(there - given.keys()), sorted(given.keys() - there)
    if missing:
        raise SourceError(
            f"{side}Offsets must name every partition that is read (-2 is earliest, -1 latest): "
            f"{_some(f'{topic}-{partition}' for topic, partition in missing)} missing"
        )
    if unknown:
        raise SourceError(
            f"{side}Offsets names what is not read: "
            f"{_some(f'{topic}-{partition}' for topic, partition in unknown)}"
        )


def batch_ranges(catalog: CatalogContents, options: SourceOptions) -> list[PartitionRange]:
    """Return the ranges of a batch query: one for each partition, empty ones too. Raises
    SourceError, DataLoss."""
    partitions = list_subscribed_partitions(catalog, options.subscription)
    first = resolve(catalog, options.starting, partitions, options, starting=True)
    last = resolve(catalog, options.ending, partitions, options, starting=False)
    return [within(catalog, PartitionRange(*key, first[key], last[key])) for key in partitions]


def within(catalog: CatalogContents, wanted: PartitionRange) -> PartitionRange:
    """Return the existing part of a range. Raises DataLoss if that is not all, unless allowed."""
    topic, partition, base, end = wanted
    ends, name = catalog.bounds(topic, partition), f"{topic}-{partition}"
    tail = "" if catalog.source.bootstrap else " (newer ones are read with kafka.bootstrap.servers)"
    if base > ends.end:
        report_loss(
            catalog.source, f"offset {base} of {name} is asked for, which ends at {ends.end}{tail}"
        )
    elif end > ends.end:
        report_loss(
            catalog.source,
            f"offsets up to {end} of {name} are asked for, which ends at {ends.end}{tail}",
        )
    if base < ends.start and base < end:
        upto = min(ends.start, end)
        report_loss(
            catalog.source,
            f"offsets [{base}, {upto}) of {name} are not there any more: it begins at {ends.start}",
        )
    base = min(max(base, ends.start), ends.end)
    return PartitionRange(topic, partition, base, max(base, min(end, ends.end)))


def begin_at(catalog: CatalogContents, key: tuple[str, int], offset: int) -> int:
    """Return where a stream begins: an offset, or the end if that is lower. Raises DataLoss
    likewise."""
    if offset <= catalog.bounds(*key).end:
        return offset
    return within(catalog, PartitionRange(*key, offset, offset)).base


def report_loss(source: Source, what: str) -> None:
    """Report records that do not exist: an error with failOnDataLoss, else a line in the log."""
    if source.fail_on_data_loss:
        raise DataLoss(f"{what}; failOnDataLoss=false goes on without them")
    logger.warning("%s; going on without them, as failOnDataLoss=false says", what)


def ends_of(catalog: CatalogContents, wanted: TopicSubscription) -> Positions:
    """Return the end of each existing partition; a stream continues after a topic was deleted."""
    if not wanted.pattern:
        there = catalog.topics
        wanted = TopicSubscription(
            tuple(name for name in wanted.names if name in there),
            "",
            tuple(row for row in wanted.partitions if row[1] < there.get(row[0], 0)),
        )
        if not (wanted.names or wanted.partitions):
            return {}
    return {key: catalog.bounds(*key).end for key in list_subscribed_partitions(catalog, wanted)}


def stream_ranges(
    catalog: CatalogContents, start: Positions, end: Positions
) -> list[PartitionRange]:
    """Ranges of a micro batch.

    Raises DataLoss if offsets are deleted, unless allowed. As in Spark's Kafka connector a
    partition that is missing in the start is read from its beginning, which must be offset 0; one
    that is missing in `end` was deleted.
    """
    source = catalog.source
    gone = start.keys() - end.keys()
    if gone:
        names = _some(f"{topic}-{partition}" for topic, partition in sorted(gone))
        report_loss(source, f"{names} gone: what was not read of it before is report_loss")
    found = []
    for (topic, partition), last in sorted(end.items()):
        name = f"{topic}-{partition}"
        if not partition < catalog.topics.get(topic, 0):
            if start.get((topic, partition)) != last:
                report_loss(
                    source, f"{name} was deleted: what was not read of it before is report_loss"
                )
            continue
        begin = catalog.bounds(topic, partition).start
        first = start.get((topic, partition))
        if first is None:
            first = begin
            if begin > 0:
                report_loss(source, f"{name} is new, but begins at offset {begin}")
        elif first > last:
            report_loss(
                source,
                f"{name} ended at {first} before and ends at {last} now: "
                f"{why_shorter(source, last)}",
            )
            first = begin
        if first < last:
            found.append(within(catalog, PartitionRange(topic, partition, first, last)))
    return found


def why_shorter(source: Source, end: int) -> str:
    """Return why a partition may end at `end` although more of it was read before."""
    made_again = "it was deleted and created again"
    if source.isolation != READ_COMMITTED:
        return made_again
    return (
        f"{made_again}, or more was read with isolation level read_uncommitted while a transaction "
        f"was open that begins at offset {end}; in that case read it when the transaction has "
        "ended (`kafkawire transactions list` shows it)"
    )


class Unread(NamedTuple):
    """A partition's unread offsets: [base, end)."""

    base: int
    end: int


def limit_offsets(
    catalog: CatalogContents, start: Positions, latest: Positions, rows: int
) -> Positions:
    """Return `latest`, or at most about `rows` offsets after `start`, from each partition in
    proportion to its unread ones. Every partition with unread offsets gets at least one (Kafka's
    connector's rateLimit)."""
    unread = {}
    for key, end in latest.items():
        base = start[key] if key in start else catalog.bounds(*key).start
        if end > base:
            unread[key] = Unread(base, end)
    total = sum(end - base for base, end in unread.values())
    if total <= rows:
        return latest
    cut = {
        key: min(end, base + max(1, rows * (end - base) // total))
        for key, (base, end) in unread.items()
    }
    return latest | cut


def waiting(start: Positions, latest: Positions) -> int:
    """Return the number of unread offsets; all of a new partition."""
    return sum(max(0, end - start.get(key, 0)) for key, end in latest.items())


def to_json(positions: Positions) -> dict[str, dict[str, int]]:
    """Return Spark's form; topics and partitions are sorted, so that equal values are equal
    strings."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(stored: Mapping[str, Mapping[str, Any]]) -> Positions:
    """Parse Spark's form. Raises SourceError if another kind of source wrote the checkpoint."""
    try:
        return {
            (topic, int(partition)): int(offset)
            for topic, offsets in stored.items()
            for partition, offset in offsets.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise SourceError(
            f"the checkpoint has {stored!r} as offsets, not {{topic: {{partition: offset}}}}"
        ) from None


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return (", ".join(listed[:NAMED]) or "no topic") + more
