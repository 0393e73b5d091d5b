"""Hand-over: partitions are prepared for another broker, which then leads them.

Everything of them is cut into segments, which the other broker reads where they are, and their last
checkpoint is stored; so the next leader loads exactly what is here, and nothing is copied. Segments
of topics with durability=s3 or replicated are uploaded, too: any broker reads them from the remote
tier, and the log objects and journals here are not needed for them any more. In this order:

1. What the journals have is cut, if it is much, and uploaded. Appends are served.
2. New transactions in these partitions are refused, and open ones get some seconds to end. A
   partition whose transaction stays open is not moved now.
3. Appends are refused: NOT_LEADER_OR_FOLLOWER, so clients try again. Readers are served.
4. What was queued is written and committed, then cut and uploaded, then the checkpoint is stored.
   Until the leader has changed no merge or cleaning replaces their segments: the next leader could
   not read one that is not uploaded.

After a failure all partitions take appends again. After success they stay closed, until the leader
has changed in SQL and they are resigned (kafkawire.log.leadership), or until `resume`, if it has
not. A crash meanwhile is like any other: the next start serves them as before.

Created by kafkawire.log.manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.maintenance.indexer import Indexer
from kafkawire.log.maintenance.journal_end import end_journal
from kafkawire.log.partition.loader import Loader
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.manager import Segments
from kafkawire.metadata.catalog import Catalog

logger = logging.getLogger(__name__)

SLICE = 256
"""Partitions per event-loop iteration: less than a millisecond."""
ROWS_AT_ONCE = 5000
"""Rows of segments per event-loop iteration: a millisecond."""
EARLY_BYTES = 8 << 20
"""So many bytes in the journals are cut before appends are refused: less takes a tenth of a second,
and a segment more is not worth it."""
PATIENCE_S = 5.0
"""How long open transactions may take to end: most end within a second."""
TRANSACTION_CHECK_S = 0.02
UPLOAD_S = 120.0
"""How long the upload of older records may take, while appends are served."""
UPLOAD_CHECK_S = 0.05
CLOSED_S = 30.0
"""How long appends are refused at most until everything is cut: producers give up after two
minutes."""


@dataclass(slots=True)
class HandedOver:
    """The result of a hand-over. `ready`: these take no appends, everything of them is in segments
    and their last checkpoint is stored. `refused`: why others cannot be moved now."""

    ready: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


class HandOver:
    """Prepares partitions for another leader, one call at a time."""

    __slots__ = (
        "_catalog",
        "_checkpoints",
        "_commit_log",
        "_env",
        "_indexer",
        "_loader",
        "_lock",
        "_node_id",
        "_segments",
    )

    def __init__(
        self,
        commit_log: CommitLog,
        catalog: Catalog,
        loader: Loader,
        checkpoints: Checkpoints,
        segments: Segments,
        indexer: Indexer,
        node_id: int,
    ) -> None:
        self._commit_log = commit_log
        self._env = commit_log.env
        self._catalog = catalog
        self._loader = loader
        self._checkpoints = checkpoints
        self._segments = segments
        self._indexer = indexer
        self._node_id = node_id
        self._lock = asyncio.Lock()

    async def run(self, numbers: Iterable[int], patience_s: float = PATIENCE_S) -> HandedOver:
        """Prepare partitions that this broker leads; see the module.

        Raises KafkaError, OSError, TimeoutError, and what the storage and the worker raise: then
        all of them take appends again.
        """
        made = HandedOver()
        async with self._lock:
            found = await self._find(sorted(set(numbers)), made)
            try:
                await self._prepare(found, made, patience_s)
            except BaseException:
                _open(found)
                raise
            _open([each for each in found if each.number in made.refused])
            made.ready = [each.number for each in found if each.number not in made.refused]
        return made

    def resume(self, numbers: Iterable[int]) -> None:
        """Have partitions take appends again, since their leader has not changed. Those that the
        catalog gives to another broker are left out: they are resigned."""
        for number in numbers:
            partition = self._loader.partitions.get(number)
            location = self._catalog.locate(number)
            if partition is not None and location is not None and location.leader == self._node_id:
                partition.open_appends()

    async def _find(self, numbers: list[int], made: HandedOver) -> list[Partition]:
        led = []
        for at, number in enumerate(numbers):
            location = self._catalog.locate(number)
            if location is None or location.leader != self._node_id:
                made.refused[number] = f"broker {self._node_id} does not lead it"
            else:
                led.append(number)
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()
        # In memory until their leader has changed: they must refuse appends.
        await self._loader.load(led)
        found = []
        for number in led:
            partition = self._loader.partitions.get(number)
            if partition is None or partition.removed:
                made.refused[number] = "it was deleted, or its leader has changed"
            else:
                found.append(partition)
        return found

    async def _prepare(self, found: list[Partition], made: HandedOver, patience_s: float) -> None:
        uploaded = [each for each in found if each.config.movable]
        uncut = sum(each.size_bytes - sum(each.segments.length) for each in found)
        # 1. While appends are served: what remains to be cut afterwards takes little time.
        if uploaded or uncut > EARLY_BYTES:
            async with self._segments.cutting():
                await self._cut(found)
        # Outside of the lock: a long upload must not hold back cuts.
        async with asyncio.timeout(UPLOAD_S):
            await self._upload(uploaded)
        # No periodic cut from here on: it could take the same offsets.
        async with self._segments.cutting():
            # 2. and 3. No new transactions, then no appends.
            await self._end_transactions(found, made, patience_s)
            moving = [each for each in found if each.number not in made.refused]
            async with asyncio.timeout(CLOSED_S):
                # 4. What was queued, then the cut, the upload and the checkpoint, all within the
                # time for which appends may be refused.
                await self._commit_log.wait_until_durable()
                await self._cut(moving)
                # A swap that began before they were closed is in memory then; later ones are
                # refused.
                await self._segments.swapper.check_unknown_outcomes()
                await self._upload([each for each in moving if each.config.movable])
                self._refuse_uncut(moving, made)
                await self._checkpoints.save()
                if any(each.dirty for each in moving):  # it changed while that was stored
                    await self._checkpoints.save()

    async def _end_transactions(
        self, found: list[Partition], made: HandedOver, patience_s: float
    ) -> None:
        for each in found:
            each.producers.refuse_new_transactions(refuse=True)
        until = self._env.clock.monotonic() + patience_s
        # A segment must name the aborted transactions among its records, and the outcome of an open
        # one is not known.
        while any(each.producers.any_open for each in found):
            if self._env.clock.monotonic() >= until:
                break
            await self._env.sleep(TRANSACTION_CHECK_S)
        for each in found:
            if each.producers.any_open:
                made.refused[each.number] = (
                    f"a transaction of it has been open for more than {patience_s:g} s"
                )
            else:
                each.close_appends()

    async def _cut(self, found: list[Partition]) -> None:
        active = self._commit_log.journals.active
        uncut = []
        for at, each in enumerate(found):
            if max(each.cut_offset, each.log_start) < each.next_offset:
                uncut.append(each)
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()
        if not uncut:
            return
        rolled = [each for each in self._commit_log.journals if each.rolled and not each.indexed]
        # The active journal has something of them: it must be rolled, since only rolled ones are
        # cut.
        if any(each.rows.row_at(active.log_position) < len(each.rows) for each in uncut):
            rolled.append(active)
        # The last one: the index files of those before it are written with it.
        for journal in rolled[-1:]:
            if not await end_journal(self._commit_log, self._indexer, journal):
                text = f"journal {journal.number} cannot be ended"
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        await self._segments.cutter.cut_all(uncut)

    async def _upload(self, found: list[Partition]) -> None:
        """Wait until the remote tier has all segments of partitions, also those that replaced
        uploaded ones."""
        numbers = {each.number for each in found}
        while found := await self._list_not_uploaded(found):
            if self._segments.remote.hurry is not None:
                # Again each time: what was cut since then too.
                self._segments.remote.hurry(numbers)
            await self._env.sleep(UPLOAD_CHECK_S)

    async def _list_not_uploaded(self, found: list[Partition]) -> list[Partition]:
        missing = []
        checked = 0
        for each in found:
            if not (each.removed or self._is_uploaded(each)):
                missing.append(each)
            checked += 1 + len(each.segments)
            if checked >= ROWS_AT_ONCE:
                await self._env.slices.pause()
                checked = 0
        return missing

    def _is_uploaded(self, partition: Partition) -> bool:
        # Once uploaded an offset counts, although a merge or a cleaning has written it again since.
        if partition.commit_offset < partition.cut_offset:
            return False
        # Other brokers upload theirs.
        own = map(self._segments.store.by_id.get, partition.segments.segment)
        return all(segment is None or segment.row.object for segment in own)

    def _refuse_uncut(self, moving: list[Partition], made: HandedOver) -> None:
        for each in moving:
            if each.removed:
                made.refused[each.number] = "it was deleted, or its leader has changed"
            elif max(each.cut_offset, each.log_start) < each.next_offset:
                made.refused[each.number] = (
                    f"its records from offset {each.cut_offset} on cannot be cut into a segment"
                )


def _open(partitions: Iterable[Partition]) -> None:
    for partition in partitions:
        partition.open_appends()
