"""What journals and segments say of topics, partitions and producers: all of it, nothing decided.

Recovery is asked on a file system that changes nothing, so that a rebuilt folder and its next start
agree on where the log ends; then every frame up to there is read. Segments are read before the
journals: what they say of epochs and producers is where the replay of the journals begins. Blocks:
nothing else runs. Called by kafkawire.cli.rebuilding.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kafkawire.codec.batches import HEAD
from kafkawire.codec.segment import (
    FormatError,
    NewerFormatError,
    PartitionEntry,
    PartitionState,
    read_header,
)
from kafkawire.codec.types import uuid_parse
from kafkawire.metadata.checkpoint import FormatError as PackedError
from kafkawire.metadata.checkpoint import ProducerEntry, unpack_epochs, unpack_producers
from log.env import Env
from log.frame import (
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    KIND_ROLL,
    KIND_TOPIC_DELETED,
    Head,
    check,
    find_frame,
    padded,
    read_catalog,
    read_head,
    read_naming,
    topics_of,
)
from log.fsck.readonly import ReadOnlyFileSystem
from log.fsck.report import Progress
from log.producers import Producers, last_sequence
from log.recovery import Found, recover
from log.runfile import read_run
from log.scan import Gap
from log.segments.files import SUFFIX, SegmentFile


@dataclass(slots=True)
class Share:
    """What a segment holds of one partition."""

    file: SegmentSeen
    entry: PartitionEntry


@dataclass(slots=True)
class SegmentSeen:
    """One sound segment file, whether readers were using it or not."""

    path: str
    uuid: bytes
    created_ms: int
    size_bytes: int


@dataclass(slots=True)
class PartitionSeen:
    """One partition number. `ranges`: [first, end) in the journals, as they lie there, joined;
    `next_offset`, `log_start`, `epochs`: the greatest anything said, the history of epochs."""

    number: int
    topic_id: bytes = b""
    topic: str = ""
    index: int = -1
    log_start: int = 0
    next_offset: int = 0
    epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: Producers = field(default_factory=Producers)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)


@dataclass(slots=True)
class Evidence:
    """All of it. `topics` and `deleted` by id, as the newest frame says; `place`: up to where the
    journals are known to be committed; `unreadable`: (path, why) of segment files."""

    partitions: dict[int, PartitionSeen] = field(default_factory=dict)
    topics: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)
    segments: list[SegmentSeen] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    damage: list[Gap] = field(default_factory=list)
    place: int = 0
    journals: int = 0
    last_producer_id: int = -1

    def of(self, number: int) -> PartitionSeen:
        """What is known of a partition so far."""
        if number not in self.partitions:
            self.partitions[number] = PartitionSeen(number)
        return self.partitions[number]


def gather(env: Env, home: str, progress: Progress) -> Evidence:
    """Read all of `<data>/brokers/<node>`. FormatError (log.frame's, the segments') for what a
    newer program has written, OSError from the disk."""
    seen = Evidence()
    env = replace(env, fs=ReadOnlyFileSystem(env.fs))
    _segments(env, os.path.join(home, "segments"), seen, progress)
    last = read_run(env.fs, home)
    clean_end = last.end if last is not None else -1
    recovered = recover(env, os.path.join(home, "journals"), 0, clean_end)
    seen.damage = recovered.damage
    seen.journals = len(recovered.found)
    # What lies behind the last known commit is read too, but is not known to be on the disk: the
    # next start makes it so, from this place on.
    claims = [found.extent().claimed for found in recovered.found]
    seen.place = min(max([0, clean_end, *claims]), recovered.written)
    for at, found in enumerate(recovered.found):
        progress("journals", at, len(recovered.found))
        _journal(env, found, seen)
    progress("journals", len(recovered.found), len(recovered.found))
    return seen


def _segments(env: Env, folder: str, seen: Evidence, progress: Progress) -> None:
    try:
        names = sorted(name for name in env.fs.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    newest: dict[int, tuple[int, PartitionState]] = {}
    for at, name in enumerate(names):
        progress("segments", at, len(names))
        path = os.path.join(folder, name)
        try:
            _segment(env, path, seen, newest)
        except NewerFormatError:
            raise
        except (FormatError, PackedError) as failure:
            seen.unreadable.append((path, str(failure)))
    for number, (end, state) in newest.items():
        _begin(seen.of(number), end, state)
    progress("segments", len(names), len(names))


def _segment(
    env: Env, path: str, seen: Evidence, newest: dict[int, tuple[int, PartitionState]]
) -> None:
    """Take all of a file or, where it is not sound, nothing."""
    file = SegmentFile(env.fs, path)
    try:
        states = file.states()
        made = read_header(file.view[:HEADER_BYTES])
        one = SegmentSeen(path, made.uuid, made.created_ms, len(file.view))
        ids = [_last_id(state) for state in states.values()]
    finally:
        file.close()
    seen.last_producer_id = max([seen.last_producer_id, *ids])
    seen.segments.append(one)
    for entry in file.directory:
        partition = seen.of(entry.number)
        partition.shares.append(Share(one, entry))
        partition.topic_id, partition.topic = entry.topic_id, entry.topic
        partition.index = entry.index
        partition.next_offset = max(partition.next_offset, entry.end_offset)
        state = states.get(entry.number)
        if state is not None:
            partition.log_start = max(partition.log_start, state.log_start)
            if entry.end_offset > newest.get(entry.number, (-1,))[0]:
                newest[entry.number] = entry.end_offset, state


def _last_id(state: PartitionState) -> int:
    unpack_epochs(state.leader_epochs)
    return max((entry.producer_id for entry in unpack_producers(state.producers)), default=-1)


def _begin(partition: PartitionSeen, end: int, state: PartitionState) -> None:
    """Start from the newest segment's state, without what was appended behind its end: that may
    never have been committed, and what was is replayed."""
    partition.epochs = [pair for pair in unpack_epochs(state.leader_epochs) if pair[1] < end]
    partition.epoch = max((epoch for epoch, _ in partition.epochs), default=0)
    kept = []
    for entry in unpack_producers(state.producers):
        batches = [batch for batch in entry.batches if batch[2] < end]
        if batches:
            kept.append(ProducerEntry(entry.producer_id, entry.epoch, batches))
    partition.producers.load(kept)


def _journal(env: Env, found: Found, seen: Evidence) -> None:
    journal = found.journal
    view = journal.warm(env.fs)
    for position, head, starts in _frames(view, journal.number, journal.end):
        payload = view[position + HEAD_BYTES : position + HEAD_BYTES + head.length]
        if head.kind == KIND_BATCH:
            _batches(view, head.number, starts, seen)
        elif head.kind == KIND_NAMING:
            naming = read_naming(payload)
            partition = seen.of(head.number)
            partition.topic_id, partition.topic = naming.topic_id, naming.topic
            partition.index = naming.index
            partition.log_start = max(partition.log_start, naming.log_start)
            partition.next_offset = max(partition.next_offset, naming.next_offset)
            partition.epoch = max(partition.epoch, naming.leader_epoch)
        elif head.kind == KIND_TOPIC_DELETED:
            seen.deleted.add(uuid_parse(read_catalog(payload)["id"]))
        elif head.kind != KIND_ROLL:
            for topic in topics_of(read_catalog(payload)):
                topic_id = uuid_parse(topic["id"])
                seen.topics.pop(topic_id, None)  # the newest last
                seen.topics[topic_id] = topic
    del view
    journal.cool()


def _frames(view: memoryview, number: int, end: int) -> Iterator[tuple[int, Head, list[int]]]:
    """(position, head, batch starts) of every sound frame, in order."""
    position, run = HEADER_BYTES, 0
    view = view[:end]
    while 0 <= position < end:
        head = read_head(view, position)
        starts = None
        if head is not None and head.run >= run:
            starts = check(view, position, head, number)
        if head is None or starts is None:
            position = find_frame(view, (position + 8) & ~7, end, number)
            continue
        run = head.run
        yield position, head, starts
        position += padded(HEAD_BYTES + head.length)


def _batches(view: memoryview, number: int, starts: list[int], seen: Evidence) -> None:
    partition = seen.of(number)
    for position in starts:
        fields = HEAD.unpack_from(view, position)
        base, epoch, end = fields[0], fields[2], fields[0] + fields[6] + 1
        if partition.ranges and partition.ranges[-1][1] == base:
            partition.ranges[-1] = partition.ranges[-1][0], end
        else:
            partition.ranges.append((base, end))
        partition.next_offset = max(partition.next_offset, end)
        partition.epoch = max(partition.epoch, epoch)
        if not partition.epochs or epoch > partition.epochs[-1][0]:
            partition.epochs.append((epoch, base))
        if fields[9] >= 0:
            seen.last_producer_id = max(seen.last_producer_id, fields[9])
            if fields[11] >= 0:
                last = last_sequence(fields[11], fields[12])
                partition.producers.replay(fields[9], fields[10], fields[11], last, base, fields[8])
