"""Records from the segments of a bucket, of a data folder or of a tier's folder, without a broker.

Manifests name the segments of an offset, their sparse indexes the blocks. Every block is verified
before its batches are searched. A file that is missing was replaced since the manifest was read:
the manifest is read again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, iter_batches
from kafkawire.codec.errors import KafkaError
from kafkawire.progress import Progress
from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files import traffic
from kafkawire.reading.files.checked_entries import BatchRun, CheckedEntry
from kafkawire.reading.files.key_index import KeyBlocks, KeyIndexBlocks
from kafkawire.reading.files.locations import FolderPlace
from kafkawire.reading.files.read_ahead import Load, loads
from kafkawire.reading.files.stored import find_stored
from kafkawire.reading.matching import matching, verified_matching
from kafkawire.reading.model.records import (
    PartitionBounds,
    RecordConditions,
    TopicRecord,
    UnknownName,
    topic_record,
)
from kafkawire.reading.model.source import (
    READ_COMMITTED,
    DamagedData,
    PartitionRange,
    Piece,
    Source,
    SourceError,
    TaskPart,
)
from kafkawire.reading.port import WIDER, OnDamage
from kafkawire.reading.transactions import aborted_transactions

MAX_REFRESHED = 5
"""How often a search may read the manifest again. Replaced files are kept for at least an hour."""
TAIL_BYTES = 1 << 20
"""Stored bytes of a bucket that a search from the end reads first, of the last segment only: what
one request reads in the time to its first byte."""
FOLDER_TAIL_BYTES = 1 << 17
"""The same in folders, where a read costs less than decompressing so much: a few milliseconds."""
REQUESTS = 16
"""Concurrent requests to a bucket, with 8 MiB of memory each: 128 MiB. Of 300 small segments at
100 ms a request: 4.5 s with 8, 2.8 s with 16, 2.3 s with 32; at 20 ms the CPU time of the requests
(3 ms each) is reached with 8."""
SEARCHED = "KiB searched"


class SegmentRecords:
    """Backend of a source without a broker, see port.Backend. `key_blocks`: finds the blocks that
    may have a key; by default, by the key indexes of the segments."""

    def __init__(self, source: Source, key_blocks: KeyBlocks | None = None) -> None:
        self._before = traffic.reading()
        self._source = source
        self._key_blocks = key_blocks or KeyIndexBlocks()
        self._catalog = open_catalog(source)

    def topics(self) -> dict[str, int]:
        return self._catalog.topics

    def bounds(self, topic: str) -> list[PartitionBounds]:
        known = self._catalog.topics
        if topic not in known:
            raise UnknownName(f"{self._source.url} has no topic {topic!r}")
        found = [self._catalog.bounds(topic, partition) for partition in range(known[topic])]
        return [PartitionBounds(at, each.start, each.end) for at, each in enumerate(found)]

    def offsets_for_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        found = self._catalog.offsets_for_times([(topic, each, ms) for each in partitions])
        return dict(zip(partitions, found, strict=True))

    def offsets_for_stored_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        bounds = {each.partition: each for each in self.bounds(topic)}
        found: dict[int, int | None] = {}
        for tried in range(MAX_REFRESHED + 1):
            try:
                for partition in partitions:
                    if partition not in found:
                        place = PartitionRange(topic, *bounds[partition])
                        pieces = self._catalog.part(place).pieces
                        found[partition] = find_stored(self._catalog.places, pieces, ms)
                return found
            except FileNotFoundError as gone:
                if tried == MAX_REFRESHED:
                    raise SourceError(f"{gone}, though its manifest names it") from None
                self.refresh()
        return found

    def scan(
        self,
        ranges: Sequence[PartitionRange],
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> Iterator[TopicRecord]:
        return _Scan(self, wanted, on_damage, progress).run(ranges)

    def tail_offsets(self, wanted: PartitionRange) -> tuple[int, int]:
        part = self._catalog.part(wanted)
        size = FOLDER_TAIL_BYTES if self.local else TAIL_BYTES
        most = max(1, (wanted.end - wanted.base) * size // max(1, part.size_bytes))
        last = wanted.end - part.pieces[-1].base if part.pieces else most
        return (most, most * WIDER) if most <= last else (max(1, last), most)

    def unread(self, topic: str) -> list[PartitionBounds]:
        return []

    def traffic(self) -> list[traffic.ReadCost]:
        return traffic.since(self._before)

    def close(self) -> None:
        self._catalog.close()

    @property
    def local(self) -> bool:
        """Whether all files are in folders."""
        return all(isinstance(each, FolderPlace) for each in self._catalog.places)

    @property
    def catalog(self) -> SourceCatalog:
        """The catalog as last read."""
        return self._catalog

    def refresh(self) -> None:
        """Read new parts of the manifests."""
        self._catalog = self._catalog.refresh_catalog()

    def pieces(
        self, parts: Sequence[TaskPart], wanted: RecordConditions
    ) -> list[tuple[TaskPart, Piece]]:
        """Return the pieces that may have matching records, with the part of each."""
        keys = [key for key in wanted.keys or () if key is not None]
        rows: list[tuple[TaskPart, Piece]] = []
        if wanted.keys is None or None in wanted.keys:
            return [(part, piece) for part in parts for piece in part.pieces]
        # One call for all partitions: the filters of many files are read together.
        every = [piece for part in parts for piece in part.pieces]
        left = list(self._key_blocks.narrow(self._catalog.places, every, keys))
        left.reverse()
        for part in parts:
            owned = {(piece.place, piece.key, piece.number) for piece in part.pieces}
            while left and (left[-1].place, left[-1].key, left[-1].number) in owned:
                rows.append((part, left.pop()))
        return rows

    def is_aborted(self, topic: str, partition: int, head: BatchHead) -> bool:
        """Return whether a batch belongs to an aborted transaction and is not to be delivered."""
        if self._source.isolation != READ_COMMITTED or not head.attributes & TRANSACTIONAL:
            return False
        place = PartitionRange(topic, partition, head.base_offset, head.last_offset + 1)
        return any(
            producer == head.producer_id and first <= head.base_offset <= last
            for producer, first, last in aborted_transactions(self._catalog, place)
        )


class _Scan:
    """One search of ranges."""

    def __init__(
        self,
        records: SegmentRecords,
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> None:
        self._records = records
        self._wanted = wanted
        self._on_damage = on_damage
        self._progress = progress
        self._done_bytes = 0
        self._cursor = 0

    def run(self, ranges: Sequence[PartitionRange]) -> Iterator[TopicRecord]:
        """Yield the matching records."""
        left = [each for each in ranges if each.base < each.end]
        for tried in range(MAX_REFRESHED + 1):
            parts = self._records.catalog.parts(left)
            if not tried:
                self._name_holes(parts)
            missing = yield from self._pass(parts)
            if missing is None:
                return
            at, name = missing
            left = left[at:]
            left[0] = left[0]._replace(base=max(left[0].base, self._cursor))
            self._records.refresh()
        raise SourceError(f"{name} is gone, though its manifest names it")

    def _name_holes(self, parts: Sequence[TaskPart]) -> None:
        """Report offsets that are in no segment."""
        for part in parts:
            topic, partition, at, end = part.range
            for low, high in [*((piece.base, piece.end) for piece in part.pieces), (end, end)]:
                if at < low:
                    text = (
                        f"offsets [{at}, {low}) of partition {partition} of topic {topic!r} are "
                        "in no segment of the source"
                    )
                    self._report_damage(DamagedData(text, topic, partition, at, low))
                at = high

    def _pass(
        self, parts: Sequence[TaskPart]
    ) -> Generator[TopicRecord, None, tuple[int, str] | None]:
        """Read all parts; return the number of the part and the name of a file that is missing,
        after which nothing was read."""
        rows = self._records.pieces(parts, self._wanted)
        numbers = {part.range: number for number, part in enumerate(parts)}
        places = self._records.catalog.places
        total = self._done_bytes + sum(piece.size_bytes for _, piece in rows)
        most = 0 if self._records.local else REQUESTS
        with closing(loads(places, [piece for _, piece in rows], most)) as found:
            for at, loaded in groupby(found, attrgetter("at")):
                part, piece = rows[at]
                place = places[piece.place]
                self._cursor = piece.base
                entry = CheckedEntry(place, piece, part.range)
                if not (yield from self._piece(entry, part, piece, loaded)):
                    return numbers[part.range], place.where(piece.key)
                self._done_bytes += piece.size_bytes
                self._progress(SEARCHED, self._done_bytes >> 10, total >> 10)
        return None

    def _piece(
        self, entry: CheckedEntry, part: TaskPart, piece: Piece, loaded: Iterator[Load]
    ) -> Generator[TopicRecord, None, bool]:
        """Read one piece. False: its file is missing."""
        try:
            for load in loaded:
                if load.gone:
                    return False
                runs = entry.plain(load) if load.blocks is None else entry.blocks(load)
                for run in runs:
                    if run.damaged:
                        self._report_damage(entry.damage(self._cursor, run))
                    else:
                        yield from self._run(entry, part, piece, run)
        except FileNotFoundError:
            return False
        self._cursor = entry.stop
        return True

    def _run(
        self, entry: CheckedEntry, part: TaskPart, piece: Piece, run: BatchRun
    ) -> Iterator[TopicRecord]:
        """Yield the matching records of whole batches."""
        topic, partition = part.range[:2]
        try:
            for position, head in iter_batches(run.data):
                if head.base_offset >= entry.stop:
                    return
                if head.last_offset < self._cursor or head.attributes & CONTROL:
                    continue
                for record in self._batch(entry, run, position, head, part.range):
                    if self._cursor <= record.offset < entry.stop:
                        yield record
                self._cursor = max(piece.base, head.last_offset + 1)
        except KafkaError as failure:  # a length that no batch can have
            end = min(run.upto, entry.stop)
            text = f"offsets [{self._cursor}, {end}) are damaged: {failure}"
            self._report_damage(
                entry.name_damage(DamagedData(text, topic, partition, self._cursor, end))
            )

    def _batch(
        self,
        entry: CheckedEntry,
        run: BatchRun,
        position: int,
        head: BatchHead,
        place: PartitionRange,
    ) -> list[TopicRecord]:
        """Return the matching records of one batch, none of an aborted transaction."""
        topic, partition = place[:2]
        try:
            check = verified_matching if run.check_crc else matching
            found = check(run.data, position, head, self._wanted)
        except KafkaError as failure:
            text = f"the batch at offset {head.base_offset} is damaged: {failure}"
            base, end = max(self._cursor, head.base_offset), head.last_offset + 1
            self._report_damage(entry.name_damage(DamagedData(text, topic, partition, base, end)))
            return []
        if not found or self._records.is_aborted(topic, partition, head):
            return []
        return [topic_record(topic, partition, record) for record in found]

    def _report_damage(self, error: DamagedData) -> None:
        if self._on_damage is None:
            raise error
        self._on_damage(error)
