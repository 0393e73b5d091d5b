"""The life of one coordinator partition: loading, failed commits, snapshots, closing.

Kinds of coordinators add how they decide and answer. A subclass appends with its `appender`, and
releases effects with `commits` after the commit that covers what was applied.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination import snapshot
from kafkawire.coordination.appender import RecordAppender
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.coordination.settling import CommitQueue
from kafkawire.coordination.snapshot import Contents, SnapshotLocation, Term
from kafkawire.log.io import slices
from kafkawire.log.io.ports import Env

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

RETRY_MS = 1000
"""Retry delay if a decision of the broker's own could not be appended or a load failed: disks
recover in seconds."""
DEFECT_RETRY_MS = 10_000
"""Retry delay of a load after an unexpected exception: a load may read a hundred megabytes, and
usually the same bytes fail again."""
CLOSE_S = 10.0
"""How long a shutdown waits for commits of all coordinators of a topic: then the log is closed,
which waits as long again."""
SNAPSHOT_LOG_BYTES = 512 * 1024
"""Log bytes to read before a snapshot is worth its write: some 8,000 commits or 4,000 records of
transactions, a tenth of a second of a start, five seconds if all fifty partitions have as many."""

LoaderT = TypeVar("LoaderT", bound=PartitionLoader)
EncodeSnapshot = Callable[[], Awaitable[Contents]]
"""Encodes a captured state, in slices."""


class CoordinatorPhase(Enum):
    """Whether the coordinator can decide on requests; the value is the error if it cannot."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    CLOSED = ErrorCode.COORDINATOR_NOT_AVAILABLE
    RESIGNED = ErrorCode.NOT_COORDINATOR


class PartitionCoordinator(ABC, Generic[LoaderT]):
    """The coordinator of one partition; call `start` or `begin_empty` once. `contents`: what it
    coordinates, for log lines."""

    contents: ClassVar[str]

    def __init__(
        self,
        env: Env,
        partition: Partition,
        commit_log: CommitLog,
        place: SnapshotLocation,
        appender: RecordAppender[Any],
    ) -> None:
        self.env = env
        self.partition = partition
        self.commit_log = commit_log
        self.place = place
        self.phase = CoordinatorPhase.LOADING
        self.commits = CommitQueue(commit_log, self._note_settled, self._commit_failed, partition)
        self.snapshot_bytes = 0
        self._records = appender
        self._life = 0  # incremented by each unload: tasks of an earlier load have no effect
        self._storing = False
        self._gained = False
        self._loading: asyncio.Task[None] | None = None

    # -- what kinds of coordinators add ---------------------------------------------------

    @abstractmethod
    def new_loader(self) -> LoaderT:
        """Return a loader of an empty state."""

    @abstractmethod
    def activate(self, loaded: LoaderT) -> None:
        """Take over a loaded state; the phase is ACTIVE."""

    @abstractmethod
    def discard(self) -> None:
        """Discard the state and answer all waiting clients with NOT_COORDINATOR."""

    @abstractmethod
    def capture(self) -> EncodeSnapshot | None:
        """Capture the state as of now for a snapshot; None if none may be written. What is encoded
        may have later changes, whose records are loaded again after it."""

    def snapshot_stored(self) -> None:
        """Note that a snapshot was written."""

    def before_close(self) -> None:
        """Append what waits to be appended."""

    # -- loading --------------------------------------------------------------------------

    def start(self, delay_ms: int = 0, *, gained: bool = False) -> None:
        """Load in the background, after a delay. `gained`: another broker led it until now."""
        self._gained = self._gained or gained
        self._loading = self.env.spawn(self.load(delay_ms), f"load {self.place.path}")

    def reload(self, delay_ms: int = 0) -> None:
        if self.phase in (CoordinatorPhase.RESIGNED, CoordinatorPhase.CLOSED):
            return
        self._unload()
        self.start(delay_ms)

    async def load(self, delay_ms: int = 0) -> None:
        """Load the state and begin to answer; retry while the log cannot be read."""
        life = self._life
        logged = False
        while life == self._life and self.phase is CoordinatorPhase.LOADING:
            if delay_ms:
                await self.env.sleep(delay_ms / 1000)
            loader = self.new_loader()
            try:
                await loader.load(gained=self._gained)
                # Else it was reloaded or resigned while it waited: this state is outdated.
                if life == self._life and self.phase is CoordinatorPhase.LOADING:
                    self._begin(loader)
            except (KafkaError, OSError) as failure:
                # Once: the disk or the remote tier may be unavailable for hours.
                if not logged:
                    logger.error(
                        "loading %s from %s-%d failed, it is retried every second: %s",
                        self.contents, self.partition.topic, self.partition.index, failure,
                    )  # fmt: skip
                logged = True
                delay_ms = RETRY_MS
            except Exception:
                self._records.log_defect(f"loading {self.place.path}")
                if life == self._life:
                    self.reload(DEFECT_RETRY_MS)

    def begin_empty(self) -> None:
        """Begin without loading: the partition is new."""
        # Another broker may have created the topic at the same time, and led the partition.
        if self.partition.next_offset:
            self.start()
        else:
            self._begin(self.new_loader())

    def _begin(self, loaded: LoaderT) -> None:
        self._records.start_appending(loaded.next_offset, loaded.log_bytes)
        self.snapshot_bytes = loaded.snapshot_bytes
        self.phase = CoordinatorPhase.ACTIVE
        self.activate(loaded)

    def alive(self, life: int) -> bool:
        return life == self._life and self.phase is CoordinatorPhase.ACTIVE

    # -- unloading ------------------------------------------------------------------------

    def _unload(self) -> None:
        # First, so that nothing that `discard` answers can decide on the old state.
        self._life += 1
        self.phase = CoordinatorPhase.LOADING
        self.commits.clear()
        self.discard()

    def _commit_failed(self, failure: BaseException) -> None:
        # What was applied may be lost. Waiting clients get NOT_COORDINATOR and retry, and find the
        # state of the committed records.
        logger.error(
            "%s-%d: appending to the log failed, loading the %s again: %s",
            self.partition.topic, self.partition.index, self.contents, failure,
        )  # fmt: skip
        self.reload()

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """Answer what can be answered, reject other requests, and write a snapshot if that saves
        time at the next start. `patience_s`: how long to wait until the last changes are
        committed."""
        # The bucket, or followers, may not answer.
        if self.phase is CoordinatorPhase.ACTIVE:
            self.before_close()
            try:
                async with asyncio.timeout(patience_s):
                    await self.commit_log.wait_until_committed()
            except (KafkaError, TimeoutError) as error:
                logger.warning(
                    "%s-%d: the last changes of %s were not committed at shutdown, so clients that "
                    "wait for them get an error: %s",
                    self.partition.topic, self.partition.index, self.contents,
                    str(error) or f"not within {patience_s:.1f} s",
                )  # fmt: skip
            # Sooner than while running: the next start has the time that this write takes.
            else:
                await self._store(least_bytes=SNAPSHOT_LOG_BYTES // 8)
        if self.phase is not CoordinatorPhase.RESIGNED:  # meanwhile
            self._end(CoordinatorPhase.CLOSED)

    def resign(self) -> None:
        """End at once: another broker leads the partition. Nothing more is written to the log or a
        snapshot."""
        self._end(CoordinatorPhase.RESIGNED)

    def _end(self, phase: CoordinatorPhase) -> None:
        if self._loading is not None:
            self._loading.cancel()
        self._unload()
        self.phase = phase

    # -- snapshots ------------------------------------------------------------------------

    def _note_settled(self) -> None:
        # Not while appends wait for a commit: the snapshot would have to wait for it, too.
        if self.commits.unsettled:
            return
        # Twice the size of a large one, so that snapshots are not written more than the log.
        least = max(SNAPSHOT_LOG_BYTES, 2 * self.snapshot_bytes)
        if self._records.log_bytes >= least and not self._storing:
            self.env.spawn(self._store(least), f"store {self.place.path}")

    async def _store(self, least_bytes: int) -> None:
        """Write a snapshot of the current state once that is committed."""
        if self._records.log_bytes < least_bytes or self._storing:
            return
        if self.phase is not CoordinatorPhase.ACTIVE:
            return  # unloaded meanwhile: the state is empty
        encode = self.capture()
        if encode is None:
            return
        self._storing = True
        # Of the moment of `capture`: records that are appended while it is encoded count as log.
        life, covered = self._life, self._records.log_bytes
        term = Term(self.partition.leader_epoch, self.env.clock.now_ms())
        try:
            contents = (await encode())._replace(term=term)
            # Also what changed while it was encoded: a snapshot must not be ahead of the log.
            await self.commit_log.wait_until_committed()
            # Else another broker may lead the partition.
            if life == self._life:
                await self._write(contents, life, covered)
            await slices.empty_slowly(contents.pairs, self.env.slices.give_way)
        except (KafkaError, OSError) as error:
            logger.warning("cannot write snapshot %s: %s", self.place.path, error)
        finally:
            self._storing = False

    async def _write(self, contents: Contents, life: int, covered: int) -> None:
        size_bytes = await self.env.offload.submit(
            "files", snapshot.write, self.env.fs, self.place, contents
        )
        if life == self._life:
            self.snapshot_bytes = size_bytes
            self._records.snapshot_stored(covered)
            self.snapshot_stored()
