"""Directory and state sections of a segment, laid out in kafkawire.codec.segment.format.

Every count and length that is read is checked against the available bytes; invalid input is a
FormatError, one sentence without the file's name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from kafkawire.codec.control import Aborted
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.layout import HEADER_BYTES, INDEX, Trailer
from kafkawire.codec.segment.lost import LostRange
from kafkawire.codec.segment.stored import Step
from kafkawire.codec.types import Buffer

_COUNTS = Struct("<II")
ENTRY = Struct("<QIIQQqqqQIIQII")
_TOPIC = Struct("<16sH")
_STATE = Struct("<QqIII")
_ABORTED = Struct("<qqq")


class _Row(NamedTuple):
    """The fields of ENTRY; `topic` is an ordinal."""

    number: int
    topic: int
    partition: int
    start: int
    length: int
    base_offset: int
    end_offset: int
    max_timestamp: int
    records: int
    batches: int
    index_checksum: int
    index_start: int
    index_length: int
    zero: int


@dataclass(slots=True)
class PartitionEntry:
    """Data of one partition in a segment; the content of an offset mapping.

    Its batches are the bytes [start, start + length) of the file; they cover the offsets
    [base_offset, end_offset), gaps allowed. The first batch may begin below `base_offset` (a log
    start within a batch). `max_timestamp`: -1 if there is none. The index is at `index_start`.
    """

    number: int
    topic_id: bytes
    topic: str
    index: int
    start: int
    length: int
    base_offset: int
    end_offset: int
    batches: int
    records: int
    max_timestamp: int
    index_start: int
    index_length: int
    index_checksum: int


@dataclass(slots=True)
class PartitionState:
    """State of a partition at its end offset in this segment, for readers without SQL.

    `leader_epochs` and `producers` are packed as in kafkawire.metadata.checkpoint; `aborted` are
    the aborted transactions that overlap the offsets of the partition in this segment, sorted by
    the offset of their marker. `lost`: offsets that were given up, sorted; `stored`: when batches
    were stored. These have separate sections.
    """

    log_start: int = 0
    leader_epochs: bytes = b"\1"
    producers: bytes = b"\1"
    aborted: list[Aborted] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    stored: list[Step] = field(default_factory=list)


def write_directory(entries: Sequence[PartitionEntry]) -> bytes:
    topics: dict[tuple[bytes, str], int] = {}
    # Each topic once: an entry names it by its ordinal, in the order of first use.
    rows = [
        ENTRY.pack(
            e.number, topics.setdefault((e.topic_id, e.topic), len(topics)), e.index,
            e.start, e.length, e.base_offset, e.end_offset, e.max_timestamp,
            e.records, e.batches, e.index_checksum, e.index_start, e.index_length, 0,
        )
        for e in entries
    ]  # fmt: skip
    names = []
    for topic_id, topic in topics:
        name = topic.encode()
        names.append(_TOPIC.pack(topic_id, len(name)) + name)
    return _COUNTS.pack(len(entries), len(topics)) + b"".join(rows) + b"".join(names)


def read_directory(body: Buffer) -> list[PartitionEntry]:
    """Decode the entries of a directory's body. FormatError for invalid bytes.

    Whether they end where the trailer says is checked by `check_directory`.
    """
    # Counts first: both are compared with the bytes that are there before anything is read by them.
    size = len(body)
    if size < _COUNTS.size:
        raise FormatError("its directory is cut short")
    count, topic_count = _COUNTS.unpack_from(body)
    at = _COUNTS.size + count * ENTRY.size
    if at + topic_count * _TOPIC.size > size:
        raise FormatError(f"its directory speaks of {count} partitions, which it has no room for")
    topics = _read_topics(memoryview(body)[at:], topic_count)
    entries: list[PartitionEntry] = []
    number, start, index_start = -1, HEADER_BYTES, None
    # Each row is checked against the one before; check_directory compares the last with the
    # trailer.
    for row in map(_Row._make, ENTRY.iter_unpack(memoryview(body)[_COUNTS.size : at])):
        if (
            # Rising numbers, a topic that exists, batches back to back after the header, a range,
            # indexes back to back, and batches exactly where there are bytes.
            row.number <= number
            or row.topic >= topic_count
            or row.start != start
            or row.base_offset > row.end_offset
            or (index_start is not None and row.index_start != index_start)
            or (row.length == 0) != (row.batches == 0)
        ):
            raise FormatError(f"its directory has a row for partition {row.number} that cannot be")
        topic_id, topic = topics[row.topic]
        entries.append(
            PartitionEntry(
                row.number, topic_id, topic, row.partition, row.start, row.length, row.base_offset,
                row.end_offset, row.batches, row.records, row.max_timestamp, row.index_start,
                row.index_length, row.index_checksum,
            )
        )  # fmt: skip
        number, start = row.number, start + row.length
        index_start = row.index_start + row.index_length
    return entries


def _read_topics(body: memoryview, count: int) -> list[tuple[bytes, str]]:
    topics = []
    at = 0
    for _ in range(count):
        if at + _TOPIC.size > len(body):
            raise FormatError("its directory ends within the topic names")
        topic_id, length = _TOPIC.unpack_from(body, at)
        at += _TOPIC.size + length
        try:
            topics.append((topic_id, str(body[at - length : at], "utf-8")))
        except UnicodeDecodeError:
            raise FormatError("its directory has a topic name that is no text") from None
    if at != len(body):
        raise FormatError("its directory does not end where its topic names do")
    return topics


def check_directory(entries: Sequence[PartitionEntry], trailer: Trailer) -> None:
    """Raise FormatError unless directory and trailer describe the same file."""
    # Without partitions both are empty: batches end after the header, the index where it begins.
    index = trailer.section(INDEX)
    start, stop = HEADER_BYTES, index.body_start
    if entries:
        start = entries[-1].start + entries[-1].length
        stop = entries[-1].index_start + entries[-1].index_length
        if entries[0].index_start != index.body_start:
            raise FormatError("its directory has indexes outside of the index")
    if start != trailer.batches_end or stop != index.stop:
        raise FormatError("its directory does not end where its trailer says")
    counts = (
        len(entries),
        sum(entry.batches for entry in entries),
        sum(entry.records for entry in entries),
    )
    if counts != (trailer.partitions, trailer.batches, trailer.records):
        raise FormatError("its directory and its trailer count differently")


def write_state(states: Sequence[tuple[int, PartitionState]]) -> bytes:
    """Encode the body of the state section: (partition number, state), numbers rise."""
    parts = [_COUNTS.pack(len(states), 0)]
    for number, state in states:
        sizes = len(state.leader_epochs), len(state.producers), len(state.aborted)
        parts += [
            _STATE.pack(number, state.log_start, *sizes),
            state.leader_epochs,
            state.producers,
        ]
        parts += [_ABORTED.pack(*entry) for entry in state.aborted]
    return b"".join(parts)


def read_state(body: Buffer) -> dict[int, PartitionState]:
    """Decode state by partition number. FormatError for anything `write_state` did not write."""
    view = memoryview(body)
    # As in the directory: no count is believed before the bytes are there.
    if len(view) < _COUNTS.size:
        raise FormatError("its state is cut short")
    count, _ = _COUNTS.unpack_from(view)
    at = _COUNTS.size
    states: dict[int, PartitionState] = {}
    for _ in range(count):
        if at + _STATE.size > len(view):
            raise FormatError("its state is cut short")
        number, log_start, epochs, producers, aborted = _STATE.unpack_from(view, at)
        at += _STATE.size
        stop = at + epochs + producers + aborted * _ABORTED.size
        if stop > len(view):
            raise FormatError(f"its state of partition {number} is cut short")
        middle = at + epochs
        last = middle + producers
        states[number] = PartitionState(
            log_start,
            bytes(view[at:middle]),
            bytes(view[middle:last]),
            [*map(Aborted._make, _ABORTED.iter_unpack(view[last:stop]))],
        )
        at = stop
    # A number twice would leave fewer states than counted.
    if at != len(view) or len(states) != count:
        raise FormatError("its state does not end where its last partition does")
    return states
