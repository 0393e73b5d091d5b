"""Plan of a rebuild: topics, checkpoints and mappings, and what is lost.

If the log start is unknown, it is where the offsets begin that are present without a gap up to the
end of the log: retention and DeleteRecords remove records from the front. Of files with the same
offsets (after an interrupted cut, or inputs of a merge) those are used that follow one another
without a gap, the newest where several do. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import PartitionInfo
from kafkawire.restore.evidence import DoubtKind, FolderEvidence, PartitionSeen, SegmentShare
from kafkawire.restore.plan import NUMBER_MARGIN, RestorePlan
from kafkawire.restore.topics import assign


def plan_from_folder(
    seen: FolderEvidence, node_id: int, leaders: Mapping[int, int] | None = None
) -> RestorePlan:
    """Plan all of it; `leaders` by partition number, `node_id` leads the others."""
    plan = RestorePlan(node_id, log_position=seen.log_position, configs=dict(seen.configs))
    plan.next_producer_id = seen.last_producer_id + 1 + NUMBER_MARGIN
    assign(seen, plan, leaders or {})
    sources = {number: seen.partitions[slot] for slot, number in plan.numbers.items()}
    damaged = bool(seen.damage or seen.unreadable)
    for topic in plan.topics:
        for info in topic.partitions:
            partition = sources.get(info.number)
            if partition is not None and partition.next_offset:
                partition.number = info.number
                _partition(f"{topic.name}-{info.index}", partition, info, damaged, plan)
    _add_losses(seen, plan)
    return plan


def _partition(
    name: str, partition: PartitionSeen, info: PartitionInfo, damaged: bool, plan: RestorePlan
) -> None:
    chain = _chain(partition)
    known = partition.log_start
    covered = [share.offsets for share in chain]
    start = _run_start([*covered, *partition.ranges], partition.next_offset)
    if damaged:  # a gap may be damage: nothing before it is given up
        first = [begin for begin, _ in covered[:1] or partition.ranges[:1]]
        start = min([start, *first])
    if start > known:
        partition.log_start = start
    partition.log_start = min(partition.log_start, partition.next_offset)
    chain = [share for share in chain if share.entry.end_offset > partition.log_start]
    if chain:
        plan.shares[partition.number] = chain
    _name_holes(name, partition, chain, known, plan)
    epochs = [*partition.epochs, (info.leader_epoch, partition.next_offset)]
    plan.checkpoints.append(
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
    name: str, partition: PartitionSeen, chain: list[SegmentShare], known: int, plan: RestorePlan
) -> None:
    """Note what is not read although a file has or should have it."""
    if partition.log_start > known:
        plan.add_doubt(
            DoubtKind.GAP,
            f"{name} starts at offset {partition.log_start}: of those between {known} and there, "
            "not all are in a segment or a journal. They were deleted, are in a remote tier only "
            "(name it with --tier), or are lost",
        )
    covered = [share.offsets for share in chain]
    read = [*covered, *partition.ranges]
    for share in partition.shares:
        entry = share.entry
        inside = _run_start([pair for pair in read if pair[0] < entry.end_offset], entry.end_offset)
        lost = entry.end_offset > known and inside > max(entry.base_offset, known)
        if lost and share.file.path:
            plan.aside.append(share.file.path)


def _add_losses(seen: FolderEvidence, plan: RestorePlan) -> None:
    """Note losses: facts that journals and segments do not have, or that were unreadable."""
    used = {share.file.path for shares in plan.shares.values() for share in shares}
    unreached = sorted(set(plan.aside) - used)
    for path, why in seen.unreadable:
        text = f"{why if path in why else f'{path}: {why}'}; it is set aside"
        plan.add_doubt(DoubtKind.UNREADABLE, text)
    for path in unreached:
        text = f"{path} holds offsets that cannot be reached; it is set aside"
        plan.add_doubt(DoubtKind.UNUSED, text)
    plan.aside = [*unreached, *(path for path, _ in seen.unreadable)]
    names = {p.number: f"{p.topic}-{p.index}" for p in seen.partitions.values() if p.topic}
    for damage in seen.damage:
        what = damage.text(lambda number: names.get(number, f"partition {number}"))
        plan.add_doubt(DoubtKind.DAMAGED, f"journal {damage.gap.journal} {what}")
    if not seen.has_manifest:
        plan.add_doubt(
            DoubtKind.LOST, "dynamic settings of brokers are in SQL only: set them again"
        )
        plan.add_doubt(
            DoubtKind.LOST,
            "log starts that DeleteRecords or retention moved since a partition was last named in "
            "a journal or cut are as they were before: such records are back until they are "
            "deleted",
        )
