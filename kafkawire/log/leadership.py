"""Leadership that changes while the broker runs: partitions that are resigned or gained.

The catalog says first that another broker leads a partition, then `Leadership.resign` is called. In
one step it takes no more appends, its readers are woken, what is queued for it is dropped, and
everything that has the object answers NOT_LEADER_OR_FOLLOWER. Then `resign` waits for what may
still write for it: the write in progress, the checkpoint and the swap of segments that have begun.
Jobs that take longer (a cut, a merge) are not waited for: a swap leaves out partitions that were
resigned since it was planned, and fails if mappings that it replaces have changed.

A gained partition is loaded at its first use, from the rows of the offset storage. Nothing of an
earlier term is used again while this process runs.

What this guarantees for records that are only in the journals of this broker: nothing but that they
are not deleted. Another broker reads segments, not these journals. A planned move therefore cuts
everything into segments before the leader changes (kafkawire.log.handover); then nothing is left
here. After any other change of the leader the records cannot be read: a warning, repeated at each
start, names the partition, its offsets and the journals, which are not recycled before the topic is
deleted (kafkawire.log.recovery.earlier_terms).

Created by kafkawire.log.manager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from kafkawire.codec.errors import KafkaError
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.callbacks import await_callbacks
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.maintenance.indexer import Indexer
from kafkawire.log.maintenance.journal_end import end_journal
from kafkawire.log.partition.loader import Loader
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.earlier_terms import LeftRecords, read_left, write_left
from kafkawire.log.segments.manager import Segments
from kafkawire.metadata.catalog import Catalog

logger = logging.getLogger(__name__)

SLICE = 256
"""Partitions resigned per event-loop iteration: a millisecond."""
MAX_REPORTED = 100
"""Partitions with records left in the journals that get a log line each."""


class Leadership:
    """Resigns and gains partitions. `kept`: journals with records of resigned partitions that no
    segment has, by partition number; a journal once for each term."""

    __slots__ = (
        "_catalog",
        "_checkpoints",
        "_commit_log",
        "_home",
        "_indexer",
        "_left",
        "_loader",
        "_released",
        "_segments",
        "kept",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        catalog: Catalog,
        loader: Loader,
        checkpoints: Checkpoints,
        segments: Segments,
        indexer: Indexer,
        released: Callable[[list[int]], None],
        home: str,
    ) -> None:
        """`released`: called with rolled journals that are not needed for a partition any more;
        `home`: the folder of the log."""
        self._home = home
        self._left: dict[int, LeftRecords] = {}
        self._commit_log = commit_log
        self._catalog = catalog
        self._loader = loader
        self._checkpoints = checkpoints
        self._segments = segments
        self._indexer = indexer
        self._released = released
        self.kept: dict[int, list[int]] = {}

    async def resign(self, numbers: Iterable[int]) -> None:
        """Release partitions that another broker leads now, according to the catalog.

        Returns when no job of this process can write for them any more.
        """
        wanted = list(numbers)
        gone: list[Partition] = []
        for start in range(0, len(wanted), SLICE):
            part = wanted[start : start + SLICE]
            gone += self._mark(part)
            await self._commit_log.env.slices.pause()
        if not wanted:
            return
        await self._settle()
        left = [each for each in gone if each.next_offset > max(each.cut_offset, each.log_start)]
        if left:
            await self._keep(left)
        for partition in gone:
            self._loader.release(partition)

    def _mark(self, numbers: Sequence[int]) -> list[Partition]:
        """Resign some partitions in one step; return those that were in memory."""
        # In one step, without an await: the catalog has the new leader already.
        self._loader.changed_leaders(numbers)
        self._segments.cutter.clear_damage(numbers)
        gone: list[Partition] = []
        for number in numbers:
            self._commit_log.trimmed.pop(number, None)
            partition = self._loader.partitions.get(number)
            if partition is not None and not partition.resigned:
                self._loader.resign_partition(partition)
                gone.append(partition)
        # What is queued would be written after the new leader has begun.
        self._commit_log.drop_resigned()
        for partition in gone:
            # Last: readers find everything closed.
            partition.notify_watchers()
        return gone

    async def _settle(self) -> None:
        """Wait for what may still write for resigned partitions: each lock is held by what has
        begun."""
        # After a failure nothing was written.
        with suppress(KafkaError, OSError):
            await await_callbacks(self._commit_log.after_write)
        # Later checkpoints leave out what was resigned, and later swaps do.
        async with self._checkpoints.hold_back():
            pass
        async with self._segments.swapper.hold_back():
            pass

    async def _keep(self, left: list[Partition]) -> None:
        active = self._commit_log.journals.active
        open_ended = [
            each for each in left if each.rows.row_at(active.log_position) < len(each.rows)
        ]
        # Now, while the partitions are in memory: the index file has their rows. A later term has
        # its records in later journals, so each index file has the offsets of one term.
        if open_ended and not await end_journal(self._commit_log, self._indexer, active):
            active.live += len(open_ended)  # as when it is rolled
            logger.warning(
                "journal %d could not be ended: a start may not find the records of %d resigned "
                "partitions in it, which stay in the file",
                active.number,
                len(open_ended),
            )
        added: dict[int, LeftRecords] = {}
        for partition in left:
            journals = list(partition.journal_extents.journal)
            if not active.rolled and partition in open_ended:
                journals.append(active.number)
            self.kept.setdefault(partition.number, []).extend(journals)
            first = max(partition.cut_offset, partition.log_start)
            added[partition.number] = LeftRecords(first, partition.next_offset, journals)
        await self._note_left(added)

    async def _note_left(self, added: dict[int, LeftRecords]) -> None:
        """Report records that no reader gets, and remember them over restarts."""
        for number, each in added.items():
            known = self._left.setdefault(number, LeftRecords(each.first, each.end))
            for journal in each.journals:
                known.add(each.first, each.end, journal)
        self._warn(added)
        env = self._commit_log.env
        try:
            await env.offload.submit("files", write_left, env.fs, self._home, dict(self._left))
        # The journals are kept while this process runs.
        except OSError as failure:
            logger.warning(
                "cannot write %s/left: a start may recycle these journals: %s", self._home, failure
            )

    def keep_again(self, found: dict[int, LeftRecords]) -> None:
        """Keep, after a start, the journals of records that were left before it: those of the file
        and those `found` in the journals."""
        env = self._commit_log.env
        known = read_left(env.fs, self._home)
        # Records of deleted topics are not needed.
        left = {number: each for number, each in known.items() if self._catalog.locate(number)}
        for number, each in found.items():
            for journal in each.journals:
                left.setdefault(number, LeftRecords(each.first, each.end)).add(
                    each.first, each.end, journal
                )
        by_number = self._commit_log.journals.by_number
        for number, each in list(left.items()):
            each.journals = [journal for journal in each.journals if journal in by_number]
            for journal in each.journals:
                # They count as live, so retention does not recycle the journal.
                by_number[journal].live += 1
            self.kept[number] = list(each.journals)
            if not each.journals:
                del left[number], self.kept[number]
        self._left = left
        self._warn(left)
        if left != known:
            write_left(env.fs, self._home, left)

    def _warn(self, left: dict[int, LeftRecords]) -> None:
        for number, each in islice(left.items(), MAX_REPORTED):
            logger.warning(
                "another broker leads %s now, or has since, and offsets %d-%d of it are only in "
                "the journals of this broker, from which no reader gets them. The journals are "
                "kept: %s",
                self._catalog.name_of(number),
                each.first,
                each.end - 1,
                ", ".join(map(str, each.journals)),
            )
        if len(left) > MAX_REPORTED:
            logger.warning("%d more partitions have such records", len(left) - MAX_REPORTED)

    async def lead(self, numbers: Iterable[int]) -> None:
        """Note partitions that this broker leads from now on, according to the catalog: each is
        loaded at its first use, from what is stored of it."""
        wanted = list(numbers)
        stale = [number for number in wanted if self._is_stale(number)]
        # Nothing of an earlier term is used again.
        if stale:
            await self.resign(stale)
        if wanted:
            self._loader.changed_leaders(wanted)
            self._segments.cutter.clear_damage(wanted)
            self._segments.cleaner.note_partitions(wanted)

    def _is_stale(self, number: int) -> bool:
        """Return whether a partition in memory is of an earlier term."""
        partition, location = self._loader.partitions.get(number), self._catalog.locate(number)
        if partition is None or location is None:
            return False
        return partition.resigned or partition.leader_epoch != location.leader_epoch

    def release_deleted(self, number: int) -> None:
        """Release the journals that were kept for a partition: its topic is deleted."""
        self._left.pop(number, None)  # the next start removes it from the file
        journals = self.kept.pop(number, None)
        if journals is not None:
            self._released(journals)
