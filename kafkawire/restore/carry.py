"""Copy records of moved partitions into segments of the folders that lead them now.

For a rebuild of several brokers' folders (kafkawire.restore.folders): a broker reads only its
own folder. The other folder's journals stay as they are, its segment files where others use them.
Blocks: nothing else runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkawire.codec.batches import HEAD
from kafkawire.log.io.ports import Env
from kafkawire.log.journal.format import KIND_BATCH
from kafkawire.log.partition.transactions import AbortedIndex
from kafkawire.log.recovery.result import RecoveredJournal
from kafkawire.log.recovery.unknown_topics import frames
from kafkawire.log.segments.file.open import SegmentFile
from kafkawire.restore.evidence import DoubtKind, FolderEvidence, PartitionSeen, SegmentShare
from kafkawire.restore.folders import Carried, Combined
from kafkawire.restore.plan import RestorePlan
from kafkawire.restore.renumber import Conversion
from kafkawire.restore.segment_files import SegmentPart


def carry(
    env: Env,
    homes: Mapping[int, str],
    found: Mapping[int, FolderEvidence],
    combined: Combined,
    plan: RestorePlan,
) -> list[Conversion]:
    """Write the new segments, which nothing refers to yet, and add them to `plan`; publish the
    result before the metadata. Offsets that cannot be read are added to the doubts."""
    made = []
    for leader in sorted({each.leader for each in combined.carried}):
        into = Conversion(env, homes[leader], combined.seen, plan, leader)
        for source in sorted(found):
            wanted = [e for e in combined.carried if (e.leader, e.source) == (leader, source)]
            if wanted:
                _Carrying(env, found[source], wanted, into, plan).run()
        made.append(into)
    numbers = {(each.source, each.number) for each in combined.carried}
    files = {s.file.path for node, n in numbers for s in found[node].partitions[n].shares}
    files -= {share.file.path for shares in plan.shares.values() for share in shares}
    plan.copied = sorted(files - {""} - set(plan.aside))
    return made


class _Carrying:
    """From one folder into another. `_reached`: how far each of the wanted ranges is copied."""

    def __init__(
        self,
        env: Env,
        seen: FolderEvidence,
        wanted: Sequence[Carried],
        into: Conversion,
        plan: RestorePlan,
    ) -> None:
        self._env = env
        self._seen = seen
        living = {each.number for each in plan.checkpoints}
        self._wanted = [each for each in wanted if each.number in living]
        self._into = into
        self._plan = plan
        self._reached = {each: each.first for each in self._wanted}

    def run(self) -> None:
        self._segments()
        self._journals()
        names = self._plan.names()
        for each, reached in self._reached.items():
            if reached < each.end:
                self._plan.add_doubt(
                    DoubtKind.GAP,
                    f"offsets {reached}-{each.end - 1} of {names[each.number]} were in the folder "
                    f"of broker {each.source}, which led it before broker {each.leader}, and "
                    "cannot be read there",
                )

    def _segments(self) -> None:
        for each in self._wanted:
            shares = self._seen.partitions[each.number].shares
            for share in sorted(shares, key=lambda one: one.entry.base_offset):
                if share.file.path and share.entry.base_offset <= self._reached[each]:
                    self._segment(each, share)

    def _segment(self, each: Carried, share: SegmentShare) -> None:
        end = min(share.entry.end_offset, each.end)
        if end <= self._reached[each]:
            return
        file = SegmentFile(self._env.fs, share.file.path)
        try:
            known = self._into.read_share(file, each.number, share)
            chosen = [b for b in known.batches if _overlaps(b, self._reached[each], end)]
            part = SegmentPart(each.number, self._reached[each], end, chosen, known.aborted)
            self._into.add({each.number: part})
        finally:
            file.close()
        self._reached[each] = end

    def _journals(self) -> None:
        wanted: dict[int, list[Carried]] = {}
        for each in self._wanted:
            wanted.setdefault(each.number, []).append(each)
        for found in self._seen.recovered.found:
            for each, part in self._journal(found, wanted).items():
                self._into.add({each.number: part})
            found.journal.cool()

    def _journal(
        self, found: RecoveredJournal, wanted: Mapping[int, Sequence[Carried]]
    ) -> dict[Carried, SegmentPart]:
        """Return the batches of a journal that follow what was copied before."""
        parts: dict[Carried, SegmentPart] = {}
        view = found.journal.warm(self._env.fs)
        for _, head, starts in frames(view, found.journal.number, found.journal.end):
            if head.kind == KIND_BATCH and head.number in wanted:
                for batch in self._into.sound_batches(view, starts):
                    for each in wanted[head.number]:
                        self._take(each, batch, parts)
        return parts

    def _take(self, each: Carried, batch: memoryview, parts: dict[Carried, SegmentPart]) -> None:
        first, end = _range(batch)
        reached = self._reached[each]
        if not first <= reached < end <= each.end:
            return
        if each not in parts:
            aborted = _aborted(self._seen.partitions[each.number])
            overlapping = list(aborted.overlapping(reached, each.end))
            parts[each] = SegmentPart(each.number, reached, end, aborted=overlapping)
        parts[each].batches.append(batch)
        parts[each].end = self._reached[each] = end


def _aborted(partition: PartitionSeen) -> AbortedIndex:
    transactions = partition.producers.transactions
    return transactions.aborted if transactions is not None else AbortedIndex()


def _range(batch: memoryview) -> tuple[int, int]:
    fields = HEAD.unpack_from(batch, 0)
    return fields[0], fields[0] + fields[6] + 1


def _overlaps(batch: memoryview, first: int, end: int) -> bool:
    base, after = _range(batch)
    return base < end and after > first
