"""Catalog of readable data: topics, the bounds of their partitions, and the location of offsets.

Built from manifests (a bucket's, a broker's local one, or both) and, with bootstrap servers, from
broker queries. The broker's topics and bounds then take precedence, and a manifest is used for
topics with the same id. Used on the driver; a task opens one only if files were deleted.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kafkawire.codec.types import ZERO_UUID
from kafkawire.manifest.keys import segment_uuid
from kafkawire.manifest.state import ManifestTopic
from kafkawire.reading.files.broker_queries import BrokerQueries, TopicMeta
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.manifests import (
    Holding,
    NothingThere,
    UnreadableTier,
    lacks_whole_tier,
    open_holdings,
    readable_holdings,
    refresh_together,
    shared_ends,
    tier_holdings,
)
from kafkawire.reading.files.spans import Spans, merge_spans
from kafkawire.reading.files.times import find_time_in_piece
from kafkawire.reading.model.source import PartitionRange, Piece, Source, SourceError, TaskPart

logger = logging.getLogger(__name__)

TRIES = 3
"""How often files may be replaced during a search by time."""
TIMES_AT_ONCE = 16
"""Partitions searched by time concurrently, each with a quarter of a megabyte and an index: a topic
may have a hundred, and a remote bucket takes half a second for one."""
RANGES_NAMED = 5
"""Maximum number of ranges in an error: each partition may have one."""
RECORD_BYTES = 1000
"""Assumed size of a record if no segment has records of its partition."""


class Bounds(NamedTuple):
    """The available offsets of a partition: [start, end); those below `segments_end` are in
    segments. Without a broker both ends are equal; with one `end` is the high watermark, or the
    last stable offset with read_committed."""

    start: int
    segments_end: int
    end: int


class Counted(NamedTuple):
    """Record counts of segments, in arrays of one length: the offsets [bases[i], ends[i]),
    ascending and disjoint, have records[i], including control batches and aborted transactions; -1:
    only a part of the segment's share is used. `generations`: 0 for segments that were never
    rewritten."""

    bases: Any
    ends: Any
    records: Any
    generations: Any


class _Layout(NamedTuple):
    """The location of a partition's offsets. `record_bytes`: average bytes per offset."""

    spans: Spans
    log_start: int
    end: int
    record_bytes: float


class SourceCatalog:
    """Catalog of a source. `places`: locations of files, in order of preference; `unreadable`:
    tiers of the source that could not be read."""

    def __init__(
        self,
        source: Source,
        holdings: Sequence[Holding],
        broker: BrokerQueries | None = None,
        layouts: dict[tuple[bytes, int], _Layout] | None = None,
        unreadable: Sequence[UnreadableTier] = (),
    ) -> None:
        self.source = source
        self.places: list[Place] = [holding.place for holding in holdings]
        self._holdings = holdings
        self._sheets = [holding.sheet for holding in holdings]
        self._broker = broker
        self._unreadable = unreadable
        self._layouts: dict[tuple[bytes, int], _Layout] = {} if layouts is None else layouts
        self._facts: dict[str, ManifestTopic] = {}
        self._ends: dict[str, dict[int, tuple[int, int]]] = {}

    def refresh_catalog(self) -> SourceCatalog:
        """Refresh the catalog; only new parts of manifests are read."""
        url, held = self.source.url, self._holdings
        if url and (self._unreadable or not held or lacks_whole_tier(held, url)):  # no uploads yet
            return _catalog(self.source, self._broker)
        holdings = refresh_together(self._holdings)
        same = len(holdings) == len(self._holdings) and all(
            new is old for new, old in zip(holdings, self._holdings, strict=True)
        )
        return SourceCatalog(self.source, holdings, self._broker, self._layouts if same else None)

    def close(self) -> None:
        """Close connections to brokers."""
        if self._broker is not None:
            self._broker.close()

    @cached_property
    def topics(self) -> dict[str, int]:
        """Return all topics, internal ones too, with their number of partitions."""
        if self._broker is not None:
            return {name: meta.partitions for name, meta in sorted(self._broker.topics().items())}
        names = {name for holding in self._holdings for name in holding.manifest.topics}
        return {name: len(self.facts(name).partitions) for name in sorted(names)}

    def facts(self, topic: str) -> ManifestTopic:
        """Return a topic's id, settings, and whether it is internal. Raises SourceError if there is
        no such topic. Partition numbers are -1 if no manifest has the topic."""
        found = self._facts.get(topic)
        if found is None:
            found = self._facts[topic] = self._find(topic)
        return found

    def bounds(self, topic: str, partition: int) -> Bounds:
        """Return the available offsets of a partition. Raises SourceError if there is no such
        partition."""
        layout = self._layout(topic, partition)
        if self._broker is None:
            return Bounds(layout.log_start, layout.end, layout.end)
        if topic not in self._ends:
            self._ends[topic] = self._broker.ends(topic)
        if partition not in self._ends[topic]:
            raise SourceError(f"partition {partition} of topic {topic!r} has no leader now")
        start, end = self._ends[topic][partition]
        return Bounds(start, min(max(start, layout.end), end), end)

    def offset_for_time(self, topic: str, partition: int, ms: int) -> int | None:
        """Return the first offset whose record's timestamp is `ms` or later; None if there is none,
        as in Kafka's ListOffsets. Raises DamagedData if the needed bytes are damaged."""
        return self.offsets_for_times([(topic, partition, ms)])[0]

    def offsets_for_times(
        self, wanted: Sequence[tuple[str, int, int]], tries: int = TRIES
    ) -> list[int | None]:
        """Return `offset_for_time` of many partitions, several concurrently, because each needs a
        few requests to a bucket."""
        ranges = []
        for topic, partition, _ in wanted:
            start, _, end = self.bounds(topic, partition)  # only this thread queries the broker
            ranges.append(PartitionRange(topic, partition, start, end))
        self._need_tier(ranges)
        found: list[int | None] = []
        try:
            with ThreadPoolExecutor(TIMES_AT_ONCE, "kafkawire-times") as pool:
                for each, at in zip(
                    wanted, pool.map(lambda one: self._time_in_segments(*one), wanted), strict=True
                ):
                    if at is None and self._broker is not None:
                        at = self._broker.offset_for_time(*each)
                    found.append(at)
        except FileNotFoundError as gone:
            if tries <= 1:
                raise SourceError(f"{gone}, though its manifest names it") from None
            return self.refresh_catalog().offsets_for_times(wanted, tries - 1)
        return found

    def _time_in_segments(self, topic: str, partition: int, ms: int) -> int | None:
        start, _, end = self.bounds(topic, partition)
        spans = self._layout(topic, partition).spans
        late = self._values("max_timestamp", spans) >= ms
        for at in np.flatnonzero(late & (spans.ends > start)).tolist():
            [piece] = self._pieces(spans.take(slice(at, at + 1)))
            piece = piece._replace(base=max(piece.base, start), end=min(piece.end, end))
            found = find_time_in_piece(self.places[piece.place], piece, topic, partition, ms)
            if found is not None:
                return found
        return None

    def part(self, wanted: PartitionRange) -> TaskPart:
        """Return a range with its pieces. Raises SourceError if there is no such partition, or for
        offsets in a tier that cannot be read."""
        self._need_tier([wanted])
        return self._part(wanted)

    def _part(self, wanted: PartitionRange) -> TaskPart:
        topic, partition, base, end = wanted
        layout = self._layout(topic, partition)
        spans = _within(layout.spans, base, end)
        bases, ends = spans.bases, spans.ends
        held = ends - bases
        density = self._values("length", spans) / np.maximum(self._offsets(spans), 1)
        bare = max(0, end - base) - int(held.sum())
        size = int((held * density).sum() + bare * layout.record_bytes)
        return TaskPart(wanted, tuple(self._pieces(spans)), size)

    def parts(self, wanted: Iterable[PartitionRange]) -> list[TaskPart]:
        """Return `part` of each range. Garbage collection is paused: a million pieces have no
        cycles, and the search for them would take longer than their creation."""
        ranges = list(wanted)
        self._need_tier(ranges)
        collects = gc.isenabled()
        gc.disable()
        try:
            return [self._part(each) for each in ranges]
        finally:
            if collects:
                gc.enable()

    def _need_tier(self, wanted: Sequence[PartitionRange]) -> None:
        """Raise SourceError if some of these offsets can only be in a tier that cannot be read."""
        if not self._unreadable or self._broker is not None:
            return
        cold = [
            f"{topic}-{partition} [{low}, {high})"
            for topic, partition, base, end in wanted
            for low, high in _find_uncovered(self._layout(topic, partition), base, end)
        ]
        if cold:
            more = f" and {len(cold) - RANGES_NAMED} more" if len(cold) > RANGES_NAMED else ""
            url, reason = self._unreadable[0]
            raise SourceError(
                f"{self.source.url} has no local files of {', '.join(cold[:RANGES_NAMED])}{more}, "
                f"and its tier {url} cannot be read: {reason}"
            )

    def count_segments(self, topic: str, partition: int) -> Counted:
        """Return record counts of a partition's segments from the manifests. Raises SourceError for
        an unknown partition."""
        spans = self._layout(topic, partition).spans
        whole = spans.bases == self._values("base_offset", spans)
        whole &= spans.ends == self._values("end_offset", spans)
        records = np.where(whole, self._values("records", spans), -1)
        generations = np.zeros(len(records), dtype="i8")
        for holder, sheet in enumerate(self._sheets):
            own = spans.holders == holder
            generations[own] = sheet.generations(spans.take(own))
        return Counted(spans.bases, spans.ends, records, generations)

    def _offsets(self, spans: Spans) -> Any:
        """Return the number of offsets of the entries with these spans."""
        return self._values("end_offset", spans) - self._values("base_offset", spans)

    def created_ms(self, piece: Piece) -> int:
        """Return when the file of a piece was written; -1 if it is a rewrite of older ones."""
        uuid = segment_uuid(piece.key)
        row = self._holdings[piece.place].manifest.find_object(uuid) if uuid else None
        return -1 if row is None or row.generation else row.created_ms

    def _find(self, topic: str) -> ManifestTopic:
        meta: TopicMeta | None = None
        found = [
            holding.manifest.topics[topic]
            for holding in self._holdings
            if topic in holding.manifest.topics
        ]
        if self._broker is not None:
            meta = self._broker.topic(topic)
            if meta is None:
                raise SourceError(f"the broker at {self.source.bootstrap} has no topic {topic!r}")
            found = [facts for facts in found if meta.id in (facts.id, ZERO_UUID)]
        elif not found:
            raise SourceError(f"{self.source.url} has no topic {topic!r}")
        if meta is None or self._broker is None:
            return max(found, key=_age)
        if found:
            facts = max(found, key=_age)
            more = meta.partitions - len(facts.partitions)
            return facts._replace(partitions=facts.partitions + (-1,) * more)
        configs = self._broker.configs(topic)
        return ManifestTopic(meta.id, topic, meta.internal, 0, configs, (-1,) * meta.partitions)

    def _layout(self, topic: str, partition: int) -> _Layout:
        facts = self.facts(topic)
        found = self._layouts.get((facts.id, partition))
        if found is None:
            count = len(facts.partitions)
            if not 0 <= partition < count:
                raise SourceError(f"topic {topic!r} has no partition {partition}: it has {count}")
            found = self._layouts[facts.id, partition] = self._laid_out(facts, partition)
        return found

    def _laid_out(self, topic: ManifestTopic, partition: int) -> _Layout:
        held: list[tuple[int, Holding, int]] = []
        log_start = end = 0
        for holder, holding in enumerate(self._holdings):
            facts = holding.manifest.topics.get(topic.name)
            if facts is None or facts.id != topic.id or partition >= len(facts.partitions):
                continue
            row = holding.manifest.get_partition(facts.partitions[partition])
            if row is not None:
                held.append((holder, holding, row.number))
                log_start = max(log_start, row.log_start)
        ends = shared_ends([(holding, number) for _, holding, number in held])
        found = [
            holding.sheet.spans(number, holder, at)
            for (holder, holding, number), at in zip(held, ends, strict=True)
        ]
        end = max(ends, default=0)
        spans = merge_spans(self._sheets, found)
        if log_start and len(found) > 1:  # one of the manifests has a later one
            spans = spans.take(spans.ends > log_start)
            np.maximum(spans.bases, log_start, out=spans.bases)
        size = int(self._values("length", spans).sum())
        count = int(self._offsets(spans).sum())
        return _Layout(
            spans, log_start, max(end, log_start), size / count if count else RECORD_BYTES
        )

    def _pieces(self, spans: Spans) -> list[Piece]:
        if len(self._sheets) == 1:
            return self._sheets[0].pieces(spans, 0)
        pieces = [
            piece
            for holder in np.unique(spans.holders).tolist()
            for piece in self._sheets[holder].pieces(spans.take(spans.holders == holder), holder)
        ]
        return sorted(pieces, key=lambda piece: piece.base)

    def _values(self, name: str, spans: Spans) -> Any:
        if len(self._sheets) == 1:
            return self._sheets[0].values(name, spans).astype("i8")
        values = np.zeros(len(spans.entries), dtype="i8")
        for holder in np.unique(spans.holders).tolist():
            own = spans.holders == holder
            values[own] = self._sheets[holder].values(name, spans.take(own))
        return values


def _within(spans: Spans, base: int, end: int) -> Spans:
    """Return the parts of ascending spans within [base, end)."""
    first = int(np.searchsorted(spans.ends, base, side="right"))
    stop = int(np.searchsorted(spans.bases, end, side="left"))
    found = spans.take(slice(first, stop if base < end else first))
    return found._replace(bases=np.maximum(found.bases, base), ends=np.minimum(found.ends, end))


def _find_uncovered(layout: _Layout, base: int, end: int) -> list[tuple[int, int]]:
    """Return the existing ranges of [base, end) that no span has, in order."""
    base, end = max(base, layout.log_start), min(end, layout.end)
    found = _within(layout.spans, base, end)
    lows, highs = [base, *found.ends.tolist()], [*found.bases.tolist(), end]
    return [(low, high) for low, high in zip(lows, highs, strict=True) if low < high]


def _age(facts: ManifestTopic) -> tuple[int, int]:
    """Return the creation time and number of partitions: of topics with the same name the newest is
    used, as the manifest describes it that was written last."""
    return facts.created_ms, len(facts.partitions)


def ids_of(catalog: SourceCatalog, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of existing topics that have one, in hex."""
    found = {name: catalog.facts(name).id for name in topics if name in catalog.topics}
    return {name: each.hex() for name, each in found.items() if each != ZERO_UUID}


def remade(catalog: SourceCatalog, ids: Mapping[str, str]) -> set[str]:
    """Return topics whose id has changed."""
    return {name for name, now in ids_of(catalog, ids).items() if now != ids[name]}


def open_catalog(source: Source) -> SourceCatalog:
    """Open the catalog of a source; reads its manifests and, if given, queries a broker.

    A URL must have a manifest, unless a broker is given, too. With a data folder its tiers are
    read, too, with the credentials of the environment. Without a URL the broker returns the
    location of its segments; records that cannot be read from there are read through the broker.
    Raises SourceError.
    """
    if not source.url and not source.bootstrap:
        raise SourceError("there is nothing to read from: neither a URL nor bootstrap servers")
    return _catalog(source, BrokerQueries(source) if source.bootstrap else None)


def _catalog(source: Source, broker: BrokerQueries | None) -> SourceCatalog:
    holdings = _open_holdings(source, broker)
    in_tiers, unreadable = tier_holdings(holdings) if source.url else ([], [])
    return SourceCatalog(source, [*holdings, *in_tiers], broker, unreadable=unreadable)


def _open_holdings(source: Source, broker: BrokerQueries | None) -> list[Holding]:
    if broker is None:
        return open_holdings(source.url)
    if not source.url:
        return readable_holdings(broker)
    try:
        holdings = open_holdings(source.url)
    except NothingThere as nothing:
        logger.warning("everything is read through the broker: %s", nothing)
        return []
    cluster = broker.cluster_id()
    for holding in holdings:
        said = holding.manifest.state.cluster_id
        if said and cluster and said != cluster:
            raise SourceError(
                f"{holding.place.url} is of the cluster {said}, the broker at {source.bootstrap} "
                f"of {cluster}"
            )
    return holdings
