"""Plan of a rebuild: topics, checkpoints and mappings, and what is lost.

If the log start is unknown, it is where the offsets begin that are present without a gap up to the
end of the log: retention and DeleteRecords remove records from the front. Of files with the same
offsets (after an interrupted cut, or inputs of a merge) those are used that follow one another
without a gap, the newest where several do. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.restore.evidence import Evidence, PartitionSeen, SegmentSeen, SegmentShare
from kafkawire.restore.topics import assign

PRODUCER_ID_MARGIN = 1_000_000
"""Added to the greatest producer id, since ids may have been assigned and not used: a thousand
blocks of a thousand."""


@dataclass(slots=True)
class Rebuilt:
    """The metadata to store in SQL. `shares`: those that are read, by partition in order of
    offsets; `aside`: segment files that no reader uses, although they may have the only copy of
    something; `copied`: those that no reader uses, because another broker's folder has copies of
    their records; `deleted`: topics that were deleted according to the journals; `numbers`: the
    partition number of each slot of the evidence; `mixed`: files contain partitions under numbers
    that are no longer theirs."""

    topics: list[TopicInfo] = field(default_factory=list)
    deleted: list[TopicInfo] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    mixed: bool = False
    checkpoints: list[PartitionCheckpoint] = field(default_factory=list)
    shares: dict[int, list[SegmentShare]] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    log_position: int = 0
    next_partition: int = 1
    next_producer_id: int = 0


def rebuild(seen: Evidence, node_id: int, leaders: Mapping[int, int] | None = None) -> Rebuilt:
    """Plan all of it; `leaders` by partition number, `node_id` leads the others."""
    result = Rebuilt(log_position=seen.log_position)
    result.next_producer_id = seen.last_producer_id + 1 + PRODUCER_ID_MARGIN
    assigned = assign(seen, node_id, leaders)
    result.topics, result.deleted, result.losses = assigned.topics, assigned.deleted, assigned.notes
    result.numbers, result.next_partition = assigned.numbers, assigned.next_partition
    result.mixed = assigned.mixed
    sources = {number: seen.partitions[slot] for slot, number in result.numbers.items()}
    damaged = bool(seen.damage or seen.unreadable)
    for topic in result.topics:
        for info in topic.partitions:
            partition = sources.get(info.number)
            if partition is not None and partition.next_offset:
                partition.number = info.number
                _partition(f"{topic.name}-{info.index}", partition, info, damaged, result)
    _losses(seen, result)
    return result


def _partition(
    name: str, partition: PartitionSeen, info: PartitionInfo, damaged: bool, result: Rebuilt
) -> None:
    chain = _chain(partition)
    known = partition.log_start
    covered = [(share.entry.base_offset, share.entry.end_offset) for share in chain]
    start = _run_start([*covered, *partition.ranges], partition.next_offset)
    if damaged:  # a gap may be damage: nothing before it is given up
        first = [begin for begin, _ in covered[:1] or partition.ranges[:1]]
        start = min([start, *first])
    if start > known:
        partition.log_start = start
    partition.log_start = min(partition.log_start, partition.next_offset)
    chain = [share for share in chain if share.entry.end_offset > partition.log_start]
    if chain:
        result.shares[partition.number] = chain
    _name_holes(name, partition, chain, known, result)
    epochs = [*partition.epochs, (info.leader_epoch, partition.next_offset)]
    result.checkpoints.append(
        PartitionCheckpoint(
            partition.number,
            partition.next_offset,
            partition.log_start,
            epochs,
            partition.producers.entries(),
        )
    )


def _chain(partition: PartitionSeen) -> list[SegmentShare]:
    """Return the shares to read: without a gap between them, as far to the end as there are any,
    and from there as far to the front; the newest where two have the same offsets."""
    best: dict[int, tuple[tuple[int, bool, int, bytes], SegmentShare | None]] = {}
    shares = [share for share in partition.shares if share.entry.end_offset > partition.log_start]
    shares.sort(key=lambda share: (share.entry.end_offset, share.entry.base_offset))
    for share in shares:
        entry = share.entry
        begin = entry.base_offset
        if begin in best:
            begin = -best[begin][0][0]
        rank = (-begin, bool(share.file.path), share.file.created_ms, share.file.uuid)
        if entry.end_offset not in best or rank > best[entry.end_offset][0]:
            best[entry.end_offset] = rank, share
    chain: list[SegmentShare] = []
    end = max(best, default=-1)
    while end in best:
        share_or_none = best[end][1]
        assert share_or_none is not None
        chain.append(share_or_none)
        end = share_or_none.entry.base_offset
    return chain[::-1]


def _run_start(ranges: Iterable[tuple[int, int]], end: int) -> int:
    """Return where the offsets begin that are present without a gap up to `end`; `end` if that is
    not."""
    start = end
    for begin, stop in sorted(ranges, key=lambda each: each[1], reverse=True):
        if stop < start:
            break
        start = min(start, begin)
    return start


def _name_holes(
    name: str, partition: PartitionSeen, chain: list[SegmentShare], known: int, result: Rebuilt
) -> None:
    """Note what is not read although a file has or should have it."""
    if partition.log_start > known:
        result.losses.append(
            f"{name} starts at offset {partition.log_start}: of those between {known} and there, "
            "not all are in a segment or a journal. They were deleted, are in a remote tier only "
            "(name it with --tier), or are lost"
        )
    covered = [(share.entry.base_offset, share.entry.end_offset) for share in chain]
    read = [*covered, *partition.ranges]
    for share in partition.shares:
        entry = share.entry
        inside = _run_start([pair for pair in read if pair[0] < entry.end_offset], entry.end_offset)
        lost = entry.end_offset > known and inside > max(entry.base_offset, known)
        if lost and share.file.path:
            result.aside.append(share.file.path)


def _losses(seen: Evidence, result: Rebuilt) -> None:
    """Note losses: facts that journals and segments do not have, or that were unreadable."""
    used = {share.file.path for shares in result.shares.values() for share in shares}
    result.aside = sorted(set(result.aside) - used)
    for path, why in seen.unreadable:
        result.losses.append(f"{why if path in why else f'{path}: {why}'}; it is set aside")
        result.aside.append(path)
    for path in result.aside[: len(result.aside) - len(seen.unreadable)]:
        result.losses.append(f"{path} holds offsets that cannot be reached; it is set aside")
    names = {p.number: f"{p.topic}-{p.index}" for p in seen.partitions.values() if p.topic}
    for damage in seen.damage:
        what = damage.text(lambda number: names.get(number, f"partition {number}"))
        result.losses.append(f"journal {damage.gap.journal} {what}")
    if not seen.has_manifest:
        result.losses += [
            "dynamic settings of brokers are in SQL only: set them again",
            "log starts that DeleteRecords or retention moved since a partition was last named in "
            "a journal or cut are as they were before: such records are back until they are "
            "deleted",
        ]


def used_files(result: Rebuilt) -> list[tuple[SegmentSeen, list[tuple[int, SegmentShare]]]]:
    """Return the files that are read, the oldest first, with the shares in them and their
    partitions."""
    files: dict[bytes, tuple[SegmentSeen, list[tuple[int, SegmentShare]]]] = {}
    shared: dict[bytes, list[tuple[int, SegmentShare]]] = defaultdict(list)
    for number, shares in result.shares.items():
        for share in shares:
            shared[share.file.uuid].append((number, share))
            files[share.file.uuid] = share.file, shared[share.file.uuid]
    return sorted(files.values(), key=lambda pair: (pair[0].created_ms, pair[0].uuid))
