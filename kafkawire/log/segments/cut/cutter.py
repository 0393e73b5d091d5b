"""The cutter: rolled journals become segments, concurrently with the traffic.

One job at a time, done by the worker process; the event loop only plans it and applies its result,
both in slices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from kafkawire import hooks
from kafkawire.codec.segment.format import PartitionState
from kafkawire.codec.segment.lost import LostRange
from kafkawire.codec.validate import HEAD_ONLY
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.worker_jobs import (
    CutArguments,
    JobResult,
    JournalFile,
    PartitionToCut,
    SegmentOutput,
    pack,
)
from kafkawire.log.journal.file import Journal, Pins
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.given_up import GivenUp, clip_ranges
from kafkawire.log.segments.cut.plan import JOB_BYTES, JOB_PARTITIONS, CutShare, ready, share_of
from kafkawire.log.segments.cut.schedule import NEVER, Timing
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.store.grouping import group
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.log.segments.store.swap import Swapper, mappings_of
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers
from kafkawire.offsets.catalog.port import SegmentCatalog, SegmentRange, SegmentRow
from kafkawire.plural import count

logger = logging.getLogger(__name__)

SLICE = 128
"""Partitions planned per event-loop iteration: a millisecond."""
SHARED_BYTES = 64 << 20
"""The most bytes of a segment that small partitions share: deleting a topic may rewrite it."""
JOB_SLICE = 64
"""Partitions whose state is packed per event-loop iteration."""
STUCK_S = 30.0
"""Seconds until a journal of which nothing could be cut is checked again."""
OPEN_S = 1.0
"""The same where a transaction is open: it may end soon, and tiered topics must not wait longer."""


class Cutter:
    """Cuts rolled journals into segments."""

    __slots__ = (
        "_commit_log",
        "_damaged_journals",
        "_env",
        "_given_up",
        "_node_id",
        "_origins",
        "_partitions",
        "_storage",
        "_store",
        "_stuck",
        "_swapper",
        "_taken",
        "_transaction_open",
        "damaged",
        "timing",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        storage: SegmentCatalog,
        store: SegmentStore,
        swapper: Swapper,
        node_id: int,
        origins: Origins,
        given_up: GivenUp,
    ) -> None:
        self._commit_log = commit_log
        self._env = commit_log.env
        self._partitions = partitions
        self._storage = storage
        self._store = store
        self._swapper = swapper
        self._node_id = node_id
        self._origins = origins
        self._given_up = given_up
        self._damaged_journals = given_up.journals()
        self.timing = Timing(commit_log, partitions)
        # Journals of which nothing could be cut, and until when they are left alone.
        self._stuck: dict[int, float] = {}
        # Partition number -> offset of a damaged batch, from which on it is not cut.
        self.damaged: dict[int, int] = {}
        self._taken: set[int] = set()
        self._transaction_open = False  # which kept something of the last plan in the journals

    async def run(self) -> bool:
        """Roll old journals and cut all that are due; return whether anything was cut."""
        # A swap of unknown outcome may have cut the same offsets.
        await self._swapper.check_unknown_outcomes()
        await self.timing.scan()
        await self._roll_if_old()
        cut = False
        while await self._cut_once():
            cut = True
        return cut

    async def cut_all(self, partitions: Sequence[Partition]) -> None:
        """Cut all that rolled journals have of some partitions, whatever their age; what is damaged
        or belongs to an open transaction stays. Not concurrently with `run`."""
        await self._swapper.check_unknown_outcomes()
        while shares := await self._plan_of(partitions):
            before = [share.partition.cut_offset for share in shares]
            pins = Pins()
            try:
                await self._cut(shares, pins)
            finally:
                pins.release()
            # No progress: damage, or an open transaction.
            if before == [share.partition.cut_offset for share in shares]:
                return

    async def _plan_of(self, partitions: Sequence[Partition]) -> list[CutShare]:
        """Return what can be cut of these partitions by one job."""
        last = -1
        for journal in self._commit_log.journals:
            # Only what is durable: a segment must not have records that a crash takes from the log.
            committed = journal.end_log_position <= self._commit_log.disk_sink.committed
            if not (journal.rolled and journal.indexed and committed):
                break
            last = journal.number
        shares: list[CutShare] = []
        size = 0
        for at, partition in enumerate(partitions):
            if len(shares) >= JOB_PARTITIONS or size >= JOB_BYTES:
                break
            share = None
            if not partition.removed:
                share = share_of(partition, last, self._given_up_of(partition))
            # Damage that was found is not tried again until its range is given up.
            if share is not None and share.start > self.damaged.get(partition.number, -1):
                shares.append(share)
                size += share.size_bytes
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()
        return shares

    def take_cut_partitions(self) -> set[int]:
        """Return the partitions that were cut since the last call."""
        taken, self._taken = self._taken, set()
        return taken

    def clear_damage(self, numbers: Iterable[int]) -> None:
        """Remove damage that was found in the journals of partitions whose leader changed."""
        for number in numbers:
            self.damaged.pop(number, None)

    async def _roll_if_old(self) -> None:
        """Begin the next journal if the active one has held data for too long."""
        journals, timing = self._commit_log.journals, self.timing
        active = journals.active
        # A given-up range in the active journal would otherwise wait for it to be full.
        old = timing.is_old(active) or active.number in self._damaged_journals
        if old and journals.ready:
            self._commit_log.roll()
            await self._env.slices.pause()
        elif old or timing.will_be_old(active):
            journals.prepare(again=old)  # and a later check rolls the journal

    def _due(self) -> list[Journal]:
        """Return rolled journals that are cold or old, and those before them."""
        journals = self._commit_log.journals
        rolled = [journal for journal in journals if journal.rolled and journal.live]
        stop = 0
        for at, journal in enumerate(rolled):
            given_up = journal.number in self._damaged_journals
            # Hot journals are kept for readers, which get them from their mapping; old ones are cut
            # all the same, so that quiet topics are in segments within bounded time.
            if given_up or journal.log_position < journals.hot_from or self.timing.is_old(journal):
                stop = at + 1
        now = self._env.clock.monotonic()
        self._stuck = {number: until for number, until in self._stuck.items() if until > now}
        # All before the last one that is due: partitions are cut in the order of offsets.
        return [journal for journal in rolled[:stop] if journal.number not in self._stuck]

    async def _cut_once(self) -> bool:
        """Plan one job and run it; False if there is nothing to cut."""
        journals = ready(self._due(), self._commit_log.disk_sink.committed)
        if not journals and not self._given_up.ranges:
            return False
        # Retention must not recycle them while the worker reads.
        pins = Pins()
        for journal in journals:
            pins.add(journal)
        try:
            shares = await self._plan(journals)
            if shares:
                await self._cut(shares, pins)
            else:
                wait_s = OPEN_S if self._transaction_open else STUCK_S
                until = self._env.clock.monotonic() + wait_s
                # Otherwise each check would plan them again.
                self._stuck.update({journal.number: until for journal in journals})
        finally:
            pins.release()
        return bool(shares or journals)

    async def _plan(self, journals: list[Journal]) -> list[CutShare]:
        last = journals[-1].number if journals else 0
        shares: dict[int, CutShare] = {}
        scanned = 0
        self._transaction_open = False
        # A range at the end of a partition may be in no journal.
        for numbers in [*(each.numbers for each in journals), self._given_up.ranges]:
            # A copy: appends to the journal add numbers during the pauses.
            for number in list(numbers):
                partition = self._partitions.get(number)
                if partition is None or number in shares or len(shares) >= JOB_PARTITIONS:
                    continue
                if partition.resigned:
                    continue
                share = share_of(partition, last, self._given_up_of(partition))
                if share is not None and share.start > self.damaged.get(number, -1):
                    shares[number] = share
                # Something is above the last stable offset: it can be cut when its transaction
                # ends.
                elif partition.last_stable_offset < partition.high_watermark:
                    self._transaction_open = True
                scanned += 1
                if scanned % SLICE == 0:
                    await self._env.slices.pause()
        # Segments are sorted by partition number.
        return [shares[number] for number in sorted(shares)]

    async def _cut(self, shares: list[CutShare], pins: Pins) -> None:
        wanted, journals = await self._pack(shares, pins)
        if not shares:
            return
        rows, groups = self._group(shares)
        # 1. Rows that are STARTED, which readers ignore. A crash leaves these and perhaps the
        # files, which the next start removes.
        ids = await self._storage.start_segments(rows)
        for row, segment_id in zip(rows, ids, strict=True):
            row.id = segment_id
        outputs = [
            SegmentOutput(
                Segment(row, self._store.folder).path, row.uuid, numbers, 0, row.retention_class
            )
            for row, numbers in zip(rows, groups, strict=True)
        ]
        origin = await self._origins.current_topics(share.partition.number for share in shares)
        job = CutArguments(
            self._node_id, rows[0].created_ms, journals, wanted, outputs, origin,
            self._commit_log.validation == HEAD_ONLY,
        )  # fmt: skip
        config = self._commit_log.config
        try:
            # 2. The files, durable.
            result: JobResult = await self._env.worker.run(
                "cut", job, config.worker_bytes_per_second
            )
            self._note_damage(result)
            finished = await self._list_finished_segments(result, rows)
            if finished:
                since = min(
                    (self.timing.held_since(each.number) for each in journals), default=NEVER
                )
                cut = [share.partition for share in shares]
                # 3. One transaction makes them LIVE, then partitions switch to them.
                await self._swapper.add(finished, None if since == NEVER else since, cut)
        except Exception:
            # If the outcome is unknown the files may be those of LIVE rows:
            # `check_unknown_outcomes` decides.
            if not self._swapper.in_doubt(rows[0]):
                await self._give_up(rows)
            raise
        done = {row.id for row, _ in finished}
        # Outputs without a partition: all of theirs are damaged.
        await self._give_up([row for row in rows if row.id not in done])
        self._taken.update(share.partition.number for share in shares)
        if self._env.hooks is not None:
            for row, mappings in finished:
                self._env.hooks.emit(
                    hooks.SegmentCut(row.uuid.hex(), row.size_bytes, self._ranges(shares, mappings))
                )
        logger.info(
            "cut %s into %s", count(len(shares), "partition"), count(len(finished), "segment")
        )

    def _ranges(
        self, shares: Iterable[CutShare], mappings: Iterable[SegmentRange]
    ) -> list[hooks.CutRange]:
        """Return what a segment has of each partition, for hooks."""
        by_number = {share.partition.number: share.partition for share in shares}
        return [
            hooks.CutRange(
                by_number[each.number].topic, by_number[each.number].index,
                each.base_offset, each.end_offset,
            )
            for each in mappings
            if each.number in by_number
        ]  # fmt: skip

    async def _pack(
        self, shares: list[CutShare], pins: Pins
    ) -> tuple[list[bytes], list[JournalFile]]:
        """Return the worker's arguments, as of now, and the journals they need, which are pinned.

        Shares of which nothing is left by now are left out.
        """
        by_number = self._commit_log.journals.by_number
        wanted: list[bytes] = []
        journals: dict[int, Journal] = {}
        for at in range(0, len(shares), JOB_SLICE):
            part = shares[at : at + JOB_SLICE]
            living = [share for share in part if _is_left(share)]
            wanted += pack([self._make_partition_to_cut(share) for share in living])
            for number in {number for share in living for number in _journals_of(share)}:
                # Pinned here, before the next pause: retention could recycle it.
                if number not in journals:
                    pins.add(by_number[number])
                    journals[number] = by_number[number]
            await self._env.slices.pause()
        # In place: the caller groups the same list into segments.
        shares[:] = [share for share in shares if share.end > share.start]
        files = [
            JournalFile(journal.number, journal.path, journal.end)
            for _, journal in sorted(journals.items())
        ]
        return wanted, files

    def _make_partition_to_cut(self, share: CutShare) -> PartitionToCut:
        partition = share.partition
        # As of now, not as of the plan.
        state = PartitionState(
            partition.log_start,
            pack_epochs(partition.epochs),
            pack_producers(partition.producers.entries()),
            partition.list_aborted(share.start, share.end),
            clip_ranges(self._given_up_of(partition), share.start, share.end),
        )
        return PartitionToCut(
            partition.number,
            partition.topic_id,
            partition.topic,
            partition.index,
            share.start,
            share.end,
            state,
        )

    def _given_up_of(self, partition: Partition) -> Sequence[LostRange]:
        return self._given_up.ranges_of_partition(partition.number, partition.topic_id)

    def _group(self, shares: list[CutShare]) -> tuple[list[SegmentRow], list[list[int]]]:
        """Return the segments to write, and the partitions in each."""
        now_ms = self._env.clock.now_ms()
        kinds = [(share.partition.number, share.kind, share.size_bytes) for share in shares]
        rows: list[SegmentRow] = []
        groups: list[list[int]] = []
        for kind, numbers in group(kinds, SHARED_BYTES):
            uuid = self._env.random.randbytes(16)
            rows.append(SegmentRow(uuid, self._node_id, now_ms, retention_class=kind))
            groups.append(numbers)
        return rows, groups

    async def _list_finished_segments(
        self, result: JobResult, rows: list[SegmentRow]
    ) -> list[tuple[SegmentRow, list[SegmentRange]]]:
        """Return the rows of the written segments, with their mappings."""
        finished = []
        for made, row in zip(result.made, rows, strict=True):
            assert made.uuid == row.uuid, "outputs are made in their order"
            if made.size_bytes:
                finished.append((row, await mappings_of(self._env, made, row, self._partitions)))
        return finished

    def _note_damage(self, result: JobResult) -> None:
        for damage in result.damaged:
            partition = self._partitions.get(damage.number)
            name = f"{partition.topic}-{partition.index}" if partition is not None else "?"
            # Kept in memory only: the next start finds it again.
            self.damaged[damage.number] = damage.offset
            logger.critical(
                "%s cannot be cut into a segment: %s, at byte %d of %s. Records before it and all "
                "other partitions are served. `kafkawire fsck --repair --skip-lost` gives up the "
                "damaged records",
                name,
                damage.text,
                damage.position,
                damage.path,
            )

    async def _give_up(self, rows: list[SegmentRow]) -> None:
        """Remove the files that a failed job may have left; if that fails, the next start does
        it."""
        if rows:
            await self._store.discard([Segment(row, self._store.folder) for row in rows])


def _is_left(share: CutShare) -> bool:
    """Fit a share to a log start that moved since it was planned; return whether anything is
    left."""
    partition = share.partition
    share.start = max(share.start, partition.log_start)
    if partition.removed:
        share.end = share.start
    return share.end > share.start


def _journals_of(share: CutShare) -> list[int]:
    extents = share.partition.journal_extents
    start, stop = extents.below(share.start), extents.find(share.end - 1) + 1
    return list(extents.journal[start:stop])
