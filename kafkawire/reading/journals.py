"""Records of the data folder of a stopped broker: those in segments, then those only in journals.

What the broker would serve from its journals after its next start is found by a trial run of
recovery (kafkawire.log.recovery.stopped_journals), which changes nothing and holds the lock of the
folder. While a broker has it, only segments are read, and `unread` returns the other offsets. The
names of topics come from the metadata of the folder: if that is in PostgreSQL only segments are
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, iter_batches
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.time_lookup import TimedPiece, find_first_since, run_in_thread
from kafkawire.codec.types import Buffer
from kafkawire.codec.walk import MAX_WALKED_RECORDS
from kafkawire.log.recovery.stopped_journals import JournalFrame, StoppedJournals, open_stopped
from kafkawire.progress import Progress
from kafkawire.reading.files import data_folder, traffic
from kafkawire.reading.files.data_folder import StoredPartition
from kafkawire.reading.files.locations import FolderPlace
from kafkawire.reading.files.manifests import NothingThere
from kafkawire.reading.matching import verified_matching, verify_checksum
from kafkawire.reading.model.records import (
    PartitionBounds,
    RecordConditions,
    TopicRecord,
    UnknownName,
    topic_record,
)
from kafkawire.reading.model.source import READ_COMMITTED, DamagedData, PartitionRange, Source
from kafkawire.reading.port import WIDER, OnDamage
from kafkawire.reading.segments import FOLDER_TAIL_BYTES, SegmentRecords

SEARCHED = "KiB of journals searched"


@dataclass(frozen=True, slots=True)
class _Tail:
    """The offsets [base, end) of a partition, which are not in segments. `journals` None: they
    cannot be read now. `aborted`: producer id, first and last offset of transactions."""

    base: int
    end: int
    journals: StoppedJournals | None = None
    frames: list[JournalFrame] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)

    def is_aborted(self, head: BatchHead) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        return bool(head.attributes & TRANSACTIONAL) and any(
            producer == head.producer_id and first <= head.base_offset <= last
            for producer, first, last in self.aborted
        )


@dataclass(frozen=True, slots=True)
class _Layout:
    """The bounds of a topic's partitions in segments and journals together. `in_segments`: the
    segments have the topic."""

    bounds: list[PartitionBounds]
    tails: list[_Tail]
    in_segments: bool


class FolderRecords:
    """Backend of a data folder, or of a broker's folder in it, see port.Backend. Raises
    NothingThere if it has neither a manifest nor journals that can be read."""

    def __init__(self, source: Source, place: FolderPlace) -> None:
        self._source = source
        self._place = place
        self._before = traffic.reading()
        self._segments: SegmentRecords | None = None
        self._layouts: dict[str, _Layout] = {}
        self._journals: dict[int, StoppedJournals] = {}
        # Before the manifest is read: no broker can replace segments from then on.
        for node, home in data_folder.homes(place).items():
            found = open_stopped(home, data_folder.checkpoint_of(place, node))
            if found is not None:
                self._journals[node] = found
        try:
            self._segments = SegmentRecords(source)
        except NothingThere:
            if not self._journals:
                raise NothingThere(
                    f"{source.url} has no segments, and its journals are not read: a broker uses "
                    "them, or they cannot be read"
                ) from None
        except BaseException:
            self.close()
            raise

    def topics(self) -> dict[str, int]:
        found = {} if self._segments is None else self._segments.topics()
        return found | data_folder.stored_topics(self._place)

    def bounds(self, topic: str) -> list[PartitionBounds]:
        return self._layout(topic).bounds

    def offsets_for_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        layout = self._layout(topic)
        found: dict[int, int | None] = dict.fromkeys(partitions)
        if layout.in_segments and self._segments is not None:
            found = self._segments.offsets_for_time(topic, partitions, ms)
        for partition, offset in found.items():
            if offset is None:
                found[partition] = self._find_time(topic, partition, layout.tails[partition], ms)
        return found

    def offsets_for_stored_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        layout = self._layout(topic)
        found: dict[int, int | None] = dict.fromkeys(partitions)
        if layout.in_segments and self._segments is not None:
            known = {each.partition for each in self._segments.bounds(topic)}
            some = [each for each in partitions if each in known]
            found |= self._segments.offsets_for_stored_time(topic, some, ms)
        for partition, offset in found.items():
            if offset is None:
                tail = layout.tails[partition]
                late = (max(tail.base, e.base) for e in tail.frames if e.stored_ms >= ms)
                found[partition] = next(late, None)
        return found

    def scan(
        self,
        ranges: Sequence[PartitionRange],
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> Iterator[TopicRecord]:
        waiting: list[PartitionRange] = []
        for each in ranges:
            layout = self._layout(each.topic)
            tail = layout.tails[each.partition]
            if layout.in_segments and each.base < tail.base:
                waiting.append(each._replace(end=min(each.end, tail.base)))
            if each.end > tail.base and tail.journals is not None:
                yield from self._in_segments(waiting, wanted, on_damage, progress)
                waiting = []
                later = each._replace(base=max(each.base, tail.base))
                yield from _TailScan(self._place, tail, wanted, on_damage, progress).run(later)
        yield from self._in_segments(waiting, wanted, on_damage, progress)

    def tail_offsets(self, wanted: PartitionRange) -> tuple[int, int]:
        tail = self._layout(wanted.topic).tails[wanted.partition]
        frames = [each for each in tail.frames if each.base < wanted.end]
        if self._segments is not None and not frames:
            return self._segments.tail_offsets(wanted)
        size = sum(each.length for each in frames)
        count = max(1, (wanted.end - tail.base) * FOLDER_TAIL_BYTES // max(1, size))
        return count, count * WIDER

    def unread(self, topic: str) -> list[PartitionBounds]:
        tails = enumerate(self._layout(topic).tails)
        return [
            PartitionBounds(partition, each.base, each.end)
            for partition, each in tails
            if each.journals is None and each.base < each.end
        ]

    def traffic(self) -> list[traffic.ReadCost]:
        return traffic.since(self._before)

    def close(self) -> None:
        if self._segments is not None:
            self._segments.close()
        for each in self._journals.values():
            each.close()

    def _in_segments(
        self,
        ranges: Sequence[PartitionRange],
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> Iterator[TopicRecord]:
        if ranges and self._segments is not None:
            yield from self._segments.scan(ranges, wanted, on_damage, progress)

    def _find_time(self, topic: str, partition: int, tail: _Tail, ms: int) -> int | None:
        """Return the first offset of a tail with this timestamp or a later one."""
        for frame in tail.frames:
            # What a frame of large batches says of its times is what producers said.
            if frame.newest < ms and frame.end - frame.base <= MAX_WALKED_RECORDS:
                continue
            piece = _FramePiece(self._place, tail, frame)
            try:
                found = run_in_thread(find_first_since(piece, ms))
            except (OSError, KafkaError) as failure:
                range_ = PartitionRange(topic, partition, piece.at, piece.bounds()[1])
                raise _damage_error(self._place, range_, f"cannot be read: {failure}") from failure
            if found is not None:
                return found.offset
        return None

    def _layout(self, topic: str) -> _Layout:
        found = self._layouts.get(topic)
        if found is None:
            found = self._layouts[topic] = self._laid_out(topic)
        return found

    def _laid_out(self, topic: str) -> _Layout:
        stored = data_folder.stored_partitions(self._place, topic)
        bounds: list[PartitionBounds] = []
        with suppress(UnknownName):
            # A topic that was deleted and created again has the same name, and another id.
            if self._segments is not None:
                known = self._segments.bounds(topic)
                if not stored or self._segments.catalog.facts(topic).id == stored[0].topic_id:
                    bounds = known
        if not bounds and not stored:
            raise UnknownName(f"{self._source.url} has no topic {topic!r}")
        in_segments = bool(bounds)
        tails = [_Tail(each.end, each.end) for each in bounds]
        for each in stored:
            if each.partition >= len(bounds):
                bounds.append(PartitionBounds(each.partition, each.log_start, each.log_start))
                tails.append(_Tail(each.log_start, each.log_start))
            base = max(bounds[each.partition].end, each.log_start)
            tails[each.partition] = tail = self._tail(each, base)
            start = max(bounds[each.partition].start, each.log_start)
            bounds[each.partition] = PartitionBounds(each.partition, start, tail.end)
            if tail.journals is None:
                bounds[each.partition] = PartitionBounds(each.partition, start, base)
        return _Layout(bounds, tails, in_segments)

    def _tail(self, stored: StoredPartition, base: int) -> _Tail:
        journals = self._journals.get(stored.node)
        if journals is None:
            return _Tail(base, max(base, stored.next_offset))
        frames = list(journals.frames(stored.number, base))
        end = max(base, stored.next_offset, frames[-1].end if frames else 0)
        if self._source.isolation != READ_COMMITTED:
            return _Tail(base, end, journals, frames)
        opened = journals.first_open(stored.number)
        end = end if opened is None else max(base, min(end, opened))
        frames = [each for each in frames if each.base < end]
        return _Tail(base, end, journals, frames, journals.list_aborted(stored.number))


class _FramePiece(TimedPiece):
    """The part of a frame that is in no segment. `at`: where it is read, for errors."""

    def __init__(self, place: FolderPlace, tail: _Tail, frame: JournalFrame) -> None:
        self._place = place
        self._tail = tail
        self._frame: JournalFrame | None = frame
        self._bounds = max(tail.base, frame.base), min(tail.end, frame.end)
        self.at = self._bounds[0]

    def bounds(self) -> tuple[int, int]:
        return self._bounds

    @property
    def trusts_heads(self) -> bool:
        return False

    async def read_next(self) -> Sequence[Buffer]:
        frame, self._frame = self._frame, None
        return () if frame is None else (_read_frame(self._place, self._tail, frame),)

    def counts(self, head: BatchHead) -> bool:
        self.at = max(self.at, head.base_offset)
        return not head.attributes & CONTROL and not self._tail.is_aborted(head)

    async def unpack(self, buffer: Buffer, position: int, head: BatchHead) -> bytes:
        verify_checksum(buffer, position, head)
        return await super().unpack(buffer, position, head)


class _TailScan:
    """One search of the journals for a range of a partition."""

    def __init__(
        self,
        place: FolderPlace,
        tail: _Tail,
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> None:
        self._place = place
        self._tail = tail
        self._wanted = wanted
        self._on_damage = on_damage
        self._progress = progress

    def run(self, place: PartitionRange) -> Iterator[TopicRecord]:
        """Yield the matching records."""
        frames = [
            each for each in self._tail.frames if each.base < place.end and each.end > place.base
        ]
        total, done, at = sum(each.length for each in frames), 0, place.base
        for frame in frames:
            if at < frame.base:
                self._report_damage(place, at, frame.base, "are in no segment and no journal")
            yield from self._frame(place, frame)
            at = frame.end
            done += frame.length
            self._progress(SEARCHED, done >> 10, total >> 10)
        if at < place.end:
            self._report_damage(place, at, place.end, "are in no segment and no journal")

    def _frame(self, place: PartitionRange, frame: JournalFrame) -> Iterator[TopicRecord]:
        at = max(place.base, frame.base)
        try:
            data = _read_frame(self._place, self._tail, frame)
            for position, head in iter_batches(data):
                if head.last_offset >= place.base and head.base_offset < place.end:
                    yield from self._batch(place, data, position, head)
                at = max(at, head.last_offset + 1)
        except (OSError, KafkaError) as failure:
            self._report_damage(place, at, min(frame.end, place.end), f"cannot be read: {failure}")

    def _batch(
        self, place: PartitionRange, data: bytes, position: int, head: BatchHead
    ) -> Iterator[TopicRecord]:
        if head.attributes & CONTROL or self._tail.is_aborted(head):
            return
        for record in verified_matching(data, position, head, self._wanted):
            if place.base <= record.offset < place.end:
                yield topic_record(place.topic, place.partition, record)

    def _report_damage(self, place: PartitionRange, base: int, end: int, why: str) -> None:
        error = _damage_error(self._place, place._replace(base=base, end=end), why)
        if self._on_damage is None:
            raise error
        self._on_damage(error)


def _read_frame(place: FolderPlace, tail: _Tail, frame: JournalFrame) -> bytes:
    assert tail.journals is not None, "it has frames"
    data = tail.journals.read(frame)
    traffic.count(place.url, len(data))
    return data


def _damage_error(place: FolderPlace, range_: PartitionRange, why: str) -> DamagedData:
    topic, partition, base, end = range_
    text = f"offsets [{base}, {end}) of partition {partition} of topic {topic!r} {why}"
    return DamagedData(f"{place.url}: {text}", topic, partition, base, end)
