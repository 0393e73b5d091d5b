"""Segment files that a plan needs: new, rewritten, or copied from the folder of another broker.

`SegmentFiles` writes one. `rewrite_folder` rewrites a folder whose files contain partitions under
numbers that are no longer theirs. `copy_carried` copies the records of moved partitions into
segments of the folders that lead them now. Blocks: nothing else runs.
"""

from __future__ import annotations

import os.path
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.batches import (
    BASE_OFFSET,
    CRC_FROM,
    HEAD,
    LAST_DELTA,
)
from kafkawire.codec.configs.settings import resolve_topic
from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import PartitionState, TopicOrigin
from kafkawire.codec.segment.lost import LostRange
from kafkawire.crc32c import crc32c
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.io.worker_jobs import JobOrigin, Made, SegmentOutput, entries_of, pack
from kafkawire.log.journal.file import index_name
from kafkawire.log.journal.format import (
    BATCH_LENGTH_AT,
    BATCH_LENGTH_OVERHEAD,
    HEAD_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    batch_starts,
    read_naming,
)
from kafkawire.log.journal.ledger import NAMES as LEDGERS
from kafkawire.log.partition.transactions import AbortedIndex
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.log.recovery.result import RecoveredJournal
from kafkawire.log.recovery.unknown_topics import frames
from kafkawire.log.segments.file.open import SegmentFile, segment_path
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers
from kafkawire.metadata.directory import TopicInfo
from kafkawire.progress import Progress
from kafkawire.restore.combine import Carried, Combined
from kafkawire.restore.evidence import (
    DoubtKind,
    FolderEvidence,
    PartitionSeen,
    SegmentSeen,
    SegmentShare,
)
from kafkawire.restore.plan import RestorePlan

WRITING = ".converting"
"""Suffix of a segment's name until it is published."""
WHY = "it holds partitions under numbers that the rebuilt metadata has given to others"


@dataclass(slots=True)
class SegmentPart:
    """The part of a new segment that belongs to one partition: whole batches that cover [first,
    end). `aborted`: the aborted transactions that the old segment listed; None: of journals;
    `lost`: the offsets in it that are lost."""

    number: int
    first: int
    end: int
    batches: list[memoryview] = field(default_factory=list)
    aborted: list[Aborted] | None = None
    lost: list[LostRange] = field(default_factory=list)


class SegmentFiles:
    """Writes segment files into a broker's folder, `home`. `tier`: its tier.url, empty: none."""

    def __init__(self, env: Env, home: str, plan: RestorePlan, node_id: int) -> None:
        self.folder = os.path.join(home, "segments")
        self.topics = {p.number: (t, p.index) for t in plan.topics for p in t.partitions}
        self._fs = env.fs
        self._node_id = node_id
        self._states = {each.number: each for each in plan.checkpoints}
        self._broker = {"tier.url": plan.tier} if plan.tier else {}
        order = JobOrigin(plan.cluster_id, pack(map(_origin_of, plan.topics)))
        self._origin = order if plan.cluster_id else None

    def by_class(self, parts: Iterable[SegmentPart]) -> list[list[SegmentPart]]:
        """Group the parts by the retention class of their segments, by ascending numbers."""
        classes: dict[str, list[SegmentPart]] = defaultdict(list)
        for part in sorted(parts, key=lambda part: part.number):
            classes[self.retention_class(part.number)].append(part)
        return list(classes.values())

    def retention_class(self, number: int) -> str:
        return retention_class(resolve_topic(self.topics[number][0].configs, self._broker))

    def write(
        self,
        uuid: bytes,
        created_ms: int,
        parts: Sequence[SegmentPart],
        suffix: str = "",
        *,
        has_records: bool = True,
    ) -> Made:
        """Write one segment with parts of one retention class, by ascending numbers. `suffix`: of
        the file's name. Blocks."""
        path = segment_path(self.folder, uuid) + suffix
        output = SegmentOutput(path, uuid, [], 0, self.retention_class(parts[0].number))
        origins = JobOrigins(self._origin, may_index_keys=has_records)
        with SegmentWriter(self._fs, output, self._node_id, created_ms, origins) as writer:
            for part in parts:
                (topic, index), known = self.topics[part.number], self._states[part.number]
                state = PartitionState(
                    known.log_start,
                    pack_epochs(known.leader_epochs),
                    pack_producers(known.producers),
                    part.aborted or [],
                    part.lost,
                )
                writer.start_partition(
                    part.number, (topic.id, topic.name, index), part.first, state
                )
                writer.write(part.batches)
                writer.end_partition(part.end)
            return writer.finish()


def _origin_of(topic: TopicInfo) -> TopicOrigin:
    return TopicOrigin(
        topic.id, len(topic.partitions), topic.created_ms, topic.internal, topic.configs
    )


def rewrite_folder(
    env: Env,
    home: str,
    seen: FolderEvidence,
    plan: RestorePlan,
    node_id: int,
    progress: Progress,
) -> Conversion:
    """Write the new files of a folder whose evidence is mixed; see Conversion for what is next.

    Every journal becomes segments, and so does every segment file with a number that changed; the
    old files are moved into the quarantine once the new metadata is in place."""
    # One partition number may belong to two topics (kafkawire.restore.plan): a journal's frames
    # name their partition only by number, so such journals cannot be read under the new numbers.
    # The new files have names that are ignored until `publish` renames them, so an interruption
    # changes nothing.
    conversion = Conversion(env, home, seen, plan, node_id)
    conversion.write(progress)
    if conversion.damaged:
        plan.add_doubt(
            DoubtKind.DAMAGED,
            f"{conversion.damaged} batches are damaged and were not taken over; they are in the "
            "quarantine with their files",
        )
    return conversion


class Conversion:
    """One folder's conversion; afterwards `plan` has the new positions. `damaged`: how many
    batches were left out because their checksums are wrong."""

    def __init__(
        self, env: Env, home: str, seen: FolderEvidence, plan: RestorePlan, node_id: int
    ) -> None:
        self._env = env
        self._home = home
        self._seen = seen
        self._plan = plan
        self._files = SegmentFiles(env, home, plan, node_id)
        self._numbers = {(t.id, at): number for number, (t, at) in self._files.topics.items()}
        self._states = {each.number: each for each in plan.checkpoints}
        self._transactions = {
            each.number: each.producers.transactions for each in seen.partitions.values()
        }
        self._made: list[str] = []
        self._old: list[str] = []
        self.damaged = 0

    def write(self, progress: Progress) -> None:
        """Write the new files, which nothing refers to yet; an OSError removes them."""
        if self._seen.damage:
            self._pass_over_lost()
        try:
            self._segments(progress)
            self._journals(progress)
        except BaseException:
            for path in self._made:
                self._env.fs.remove(path + WRITING)
            raise
        # Every journal became segments: nothing is replayed.
        self._plan.log_position = 0

    def _pass_over_lost(self) -> None:
        """Raise next offsets above what was lost with damaged journals."""
        # The next start cannot do so, as the journals are no longer there.
        recovered, bounds = self._seen.recovered, self._seen.bounds
        for number, state in self._states.items():
            if number in self._seen.partitions:
                log_position = recovered.last_log_position(number)
                state.next_offset = recovered.ends.at_least(
                    number, state.next_offset, log_position, bounds
                )

    def publish(self) -> None:
        """Give the new files their names, before the metadata that points to them is in place."""
        for path in self._made:
            self._env.fs.rename(path + WRITING, path)
        self._env.fs.sync_dir(self._files.folder)

    def set_aside(self) -> None:
        """Move the old files into the quarantine, once the new metadata is in place."""
        quarantine = Quarantine(self._env.fs, self._home)
        there = self._env.fs.listdir(self._home)
        ledgers = [os.path.join(self._home, name) for name in LEDGERS if name in there]
        # The ledger first: it names the journals, which would seem to be lost.
        for path in [*ledgers, *self._old]:
            quarantine.move_file(path, WHY, self._env.clock.now_ms())

    def _segments(self, progress: Progress) -> None:
        """Rewrite the segment files with an entry whose number has changed."""
        files = self._plan.files()
        for at, (file, shares) in enumerate(files):
            progress("segments", at, len(files))
            if all(share.entry.number == number for number, share in shares):
                continue
            if not file.path:
                raise LogError(
                    "partitions in the remote tier have numbers that other partitions use: restore "
                    "them into a new data folder with `kafkawire restore TIER`"
                )
            opened = SegmentFile(self._env.fs, file.path)
            try:
                by_number = dict(sorted(shares, key=lambda pair: pair[0]))
                parts = [self.read_share(opened, *pair) for pair in by_number.items()]
                for number, made in self._write(parts).items():
                    known = self._plan.shares[number]
                    known[known.index(by_number[number])] = made
            finally:
                opened.close()
            self._old.append(file.path)
        used = {share.file.path for shares in self._plan.shares.values() for share in shares}
        # A later rebuild must not find the old numbers again.
        for one in self._seen.segments:
            if one.path not in used and one.path not in self._plan.aside + self._old:
                self._old.append(one.path)

    def add(self, parts: dict[int, SegmentPart]) -> None:
        """Write segments with more parts of the partitions of a rebuild, by number."""
        for kind_parts in self._files.by_class(parts.values()):
            for number, made in self._write(kind_parts).items():
                shares = self._plan.shares.setdefault(number, [])
                shares.append(made)
                shares.sort(key=lambda share: share.entry.base_offset)

    def read_share(self, file: SegmentFile, number: int, share: SegmentShare) -> SegmentPart:
        """Read the sound batches of a partition from a segment file."""
        entry = share.entry
        view = file.need(entry.start, entry.start + entry.length, lambda _: None)
        starts = batch_starts(view, 0, len(view)) or []
        known = file.states().get(entry.number) or PartitionState()
        sound = self.sound_batches(view, starts)
        return SegmentPart(number, entry.base_offset, entry.end_offset, sound, known.aborted)

    def sound_batches(self, view: memoryview, starts: list[int]) -> list[memoryview]:
        sound = []
        for at in starts:
            stop = at + _batch_size(view, at)
            if crc32c(view[at + CRC_FROM : stop]) == HEAD.unpack_from(view, at)[4]:
                sound.append(view[at:stop])
            else:
                self.damaged += 1
        return sound

    def _journals(self, progress: Progress) -> None:
        reached = {each.number: each.log_start for each in self._plan.checkpoints}
        for number, shares in self._plan.shares.items():
            reached[number] = shares[-1].entry.end_offset
        for at, found in enumerate(self._seen.recovered.found):
            progress("journals", at, len(self._seen.recovered.found))
            for kind_parts in self._files.by_class(self._journal(found, reached).values()):
                for number, made in self._write(kind_parts).items():
                    self._plan.shares.setdefault(number, []).append(made)
            journal = found.journal
            journal.cool()
            self._old.append(journal.path)
            index = os.path.join(journal.folder, index_name(journal.number))
            if os.path.basename(index) in self._env.fs.listdir(journal.folder):
                self._old.append(index)

    def _journal(self, found: RecoveredJournal, reached: dict[int, int]) -> dict[int, SegmentPart]:
        """Return a journal's batches that are in no segment, by number; moves `reached`."""
        view = found.journal.warm(self._env.fs)
        named: dict[int, bytes] = {}
        parts: dict[int, SegmentPart] = {}
        for position, head, starts in frames(view, found.journal.number, found.journal.end):
            at = position + HEAD_BYTES
            if head.kind == KIND_NAMING:
                named[head.number] = read_naming(view[at : at + head.length]).topic_id
            if head.kind != KIND_BATCH:
                continue
            slot = self._seen.slot(head.number, named.get(head.number, b""))
            number = None if slot is None else self._number(slot)
            # Of a deleted topic.
            if number is None:
                continue
            for batch in self.sound_batches(view, starts):
                fields = HEAD.unpack_from(batch, 0)
                end = fields[BASE_OFFSET] + fields[LAST_DELTA] + 1
                # A segment has it, or it is below the log start.
                if end <= reached[number]:
                    continue
                # From there, and not from the batch, so that there is no gap between segments.
                part = parts.setdefault(number, SegmentPart(number, reached[number], 0))
                part.batches.append(batch)
                part.end = reached[number] = end
        return parts

    def _number(self, slot: int) -> int | None:
        """Return the partition number of a slot, also of one that was merged into another."""
        partition = self._seen.partitions.get(slot)
        if partition is None:
            return None
        number = self._numbers.get((partition.topic_id, partition.index))
        return number if number in self._states else None

    def _write(self, parts: list[SegmentPart]) -> dict[int, SegmentShare]:
        """Write one segment with these partitions, by rising number; return their shares."""
        if not parts:
            return {}
        uuid, now_ms = self._env.random.randbytes(16), self._env.clock.now_ms()
        path = segment_path(self._files.folder, uuid)
        self._made.append(path)
        for part in parts:
            if part.aborted is None:
                part.aborted = self._list_aborted(part)
        made = self._files.write(uuid, now_ms, parts, WRITING)
        file = SegmentSeen(uuid, now_ms, made.size_bytes, path)
        return {entry.number: SegmentShare(file, entry) for entry in entries_of(made)}

    def _list_aborted(self, part: SegmentPart) -> list[Aborted]:
        transactions = self._transactions.get(part.number)
        found = transactions.aborted if transactions is not None else AbortedIndex()
        return list(found.overlapping(part.first, part.end))


def _batch_size(view: memoryview, at: int) -> int:
    length = int.from_bytes(view[at + BATCH_LENGTH_AT : at + BATCH_LENGTH_AT + 4], "big")
    return length + BATCH_LENGTH_OVERHEAD


def copy_carried(
    env: Env,
    homes: Mapping[int, str],
    found: Mapping[int, FolderEvidence],
    combined: Combined,
    plan: RestorePlan,
) -> list[Conversion]:
    """Write the new segments, which nothing refers to yet, and add them to `plan`; publish the
    result before the metadata. Offsets that cannot be read are added to the doubts. A broker reads
    only its own folder; the other folder's journals stay as they are, its segment files where
    others use them."""
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
        first, end = _batch_offsets(batch)
        reached = self._reached[each]
        if not first <= reached < end <= each.end:
            return
        if each not in parts:
            aborted = _aborted_index_of(self._seen.partitions[each.number])
            overlapping = list(aborted.overlapping(reached, each.end))
            parts[each] = SegmentPart(each.number, reached, end, aborted=overlapping)
        parts[each].batches.append(batch)
        parts[each].end = self._reached[each] = end


def _aborted_index_of(partition: PartitionSeen) -> AbortedIndex:
    transactions = partition.producers.transactions
    return transactions.aborted if transactions is not None else AbortedIndex()


def _batch_offsets(batch: memoryview) -> tuple[int, int]:
    fields = HEAD.unpack_from(batch, 0)
    return fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_DELTA] + 1


def _overlaps(batch: memoryview, first: int, end: int) -> bool:
    base, after = _batch_offsets(batch)
    return base < end and after > first
