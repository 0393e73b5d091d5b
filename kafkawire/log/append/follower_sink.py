"""Followers as a sink: records of topics with durability=replicated are committed once they are
durable here and at all in-sync followers.

Frames of these partitions are in the journals, like all others. Followers get the journals byte for
byte, so what is committed is a log position: everything before it.

While fewer replicas are in sync than `min.insync.replicas` of the broker wants, or the oldest write
waits for too long, batches are refused with NOT_ENOUGH_REPLICAS. Owned by
kafkawire.log.append.commit_log, which calls it; kafkawire.log.followers.service moves what is
committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.configs.durability_rules import DURABILITY, REPLICATED
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import Callback, call_all
from kafkawire.log.partition.waiting_queue import (
    FailedPartitions,
    UncommittedWrite,
    WaitingQueue,
    unless_for_others,
)
from kafkawire.log_lines import reason_of

if TYPE_CHECKING:
    from kafkawire.log.partition.state import AppendLog, Frame, LoadedPartition
    from kafkawire.metadata.catalog import TopicInfo

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""How long a broker that shuts down waits for its followers."""


class OwnDisk(Protocol):
    """The disk of the leader, one of the replicas (kafkawire.log.append.disk_sink)."""

    def note_frame(self, partition: LoadedPartition) -> None:
        """Note a frame of a partition whose records have to be on the disk and elsewhere."""

    def wait(self, callbacks: list[Callback]) -> None:
        """Call these when everything written so far is durable."""


class FollowerSink:
    """Followers as a Sink: the write batches and callers that wait for them are in `queue`.
    `in_sync`: replicas that acks=all waits for, the broker itself included."""

    # acks=1 is answered after the write, as in Kafka.
    awaited_by_acks_1 = False
    __slots__ = (
        "_closing", "_committed", "_disk", "_is_needed", "_log", "_when_needed", "_when_written",
        "in_sync", "queue", "refusal",
    )  # fmt: skip

    def __init__(self, log: AppendLog, disk: OwnDisk) -> None:
        self._log = log
        self._disk = disk
        self.queue = WaitingQueue(UncommittedWrite, log.config.uncommitted_max_bytes)
        self._when_written: Callable[[], None] | None = None
        self._when_needed: Callable[[], None] | None = None
        self._is_needed = self._closing = False
        self._committed = 0
        self.in_sync = 1
        # Until replication has begun it is unknown which followers are in sync, so nothing may be
        # acknowledged.
        why = "the followers of this broker are not known yet"
        self.refusal: KafkaError | None = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, why)

    @property
    def failed(self) -> KafkaError | None:
        return self.queue.failed

    @property
    def began(self) -> bool:
        """Whether followers get the log."""
        return self._when_written is not None and self.queue.failed is None

    def position_to_state(self, own: int) -> int:
        """Return the log position that new frames state as committed, when the own journals are
        durable up to `own`."""
        # It must be true of each copy that has the frame: a follower may lose what it has not
        # synced, though the own disk has it.
        return own if self._when_written is None else self._committed

    def when_needed(self, fn: Callable[[], None]) -> None:
        """Call `fn`, which begins replication, once there is a partition that needs it."""
        self._when_needed = fn
        # The partition may have been loaded before this was set.
        if self._is_needed:
            fn()

    def need(self) -> None:
        """Note that there is a partition with durability=replicated."""
        if not self._is_needed:
            self._is_needed = True
            if self._when_needed is not None:
                self._when_needed()

    def topics_added(self, infos: Iterable[TopicInfo], node_id: int) -> None:
        """Begin replication if this broker leads new partitions with durability=replicated."""
        # Now, not at their first append: their replicas must be known, and in sync, before it.
        if not self._is_needed and any(leads_replicated(each, node_id) for each in infos):
            self.need()

    def when_written(self, fn: Callable[[], None]) -> None:
        self._when_written = fn

    def add(self, partition: LoadedPartition, frame: Frame) -> None:
        self.queue.add(partition, frame.end, frame.length)
        # The own disk is one of the replicas, and the ledger needs a bound of the partition.
        self._disk.note_frame(partition)

    def note_write(self, *, awaited: bool) -> None:
        log = self._log
        self.queue.seal(log.written, log.env.clock.monotonic())
        if self._when_written is not None:
            self._when_written()  # followers write while the own disk does
        self._disk.wait([self._note_own_sync])

    def wait(self, callbacks: list[Callback]) -> None:
        self.queue.wait(callbacks)

    def when_all(self, fn: Callback) -> None:
        """Call `fn` when the whole log written so far is committed."""
        log, sealed = self._log, self.queue.sealed
        end = sealed[-1].log_position if sealed else self._committed
        # Frames of the catalog and of other partitions seal no write here. They must be at the
        # followers too: what SQL has must not be ahead of their copies.
        if self.began and log.journals.active.end and end < log.written:
            self.note_write(awaited=True)
        self.wait([unless_for_others(fn)])

    def commit(self, log_position: int) -> None:
        """Complete the write batches before a log position: move the high watermarks and call the
        waiters."""
        done = False
        self._committed = max(self._committed, log_position)
        sealed = self.queue.sealed
        while sealed and sealed[0].log_position <= log_position:
            done = True
            written = self.queue.complete()
            # A topic may want more replicas than the broker, and they may have become too few since
            # its batch was appended: its producers must not take the batch for replicated.
            few = [each for each in written.ends if each.config.min_insync_replicas > self.in_sync]
            call_all(written.callbacks, self._too_few(few) if few else None)
        if done:
            self._log.measure_room()

    def waiting_s(self) -> float:
        """Return for how many seconds the oldest write has not been committed; 0 without any."""
        sealed = self.queue.sealed
        return self._log.env.clock.monotonic() - sealed[0].at_s if sealed else 0.0

    async def close(self) -> bool:
        """Refuse what is appended from now on, and wait up to CLOSE_S for what was written; return
        whether all of it is committed."""
        # From now on `update` does not accept batches again.
        self._closing = True
        self.refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")
        self._log.measure_room()
        done = asyncio.get_running_loop().create_future()

        def settle(failure: BaseException | None) -> None:
            if not done.done():
                done.set_result(failure is None)

        self._log.call_when_durable((self,), lambda _: self.when_all(settle))
        try:
            async with asyncio.timeout(CLOSE_S):
                return bool(await done)
        except TimeoutError:
            why = "the broker has shut down before its followers had the records"
            logger.warning("%s: they are not acknowledged, and the next start sends them", why)
            self.fail_waiting(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, why))
            return False

    def update(self, why: str) -> None:
        """Refuse batches for this reason; accept them if it is empty."""
        if self.failed is not None or self._closing:
            return
        before = self.refusal
        self.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, why) if why else None
        # Only a change of whether batches are refused is logged, not each new reason.
        if (before is None) != (self.refusal is None):
            self._log.measure_room()
            if why:
                logger.error("produces to topics with durability=replicated are refused: %s", why)
            else:
                logger.info("produces to topics with durability=replicated are accepted")

    def fail_waiting(self, why: KafkaError) -> None:
        """Commit nothing any more, and answer everything that waits with an error."""
        if self.failed is not None:
            return
        self.refusal = why
        self.queue.fail(why)
        self._log.measure_room()

    def _note_own_sync(self, failure: BaseException | None) -> None:
        """Note that the own journals are durable up to some write batch, or never will be."""
        if failure is not None:
            self.fail_waiting(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason_of(failure)))
        elif self._when_written is not None:
            # The own replica counts too: what waits may be committed now.
            self._when_written()

    def _too_few(self, partitions: Collection[LoadedPartition]) -> FailedPartitions:
        return FailedPartitions(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"the records are written to {self.in_sync} in-sync replicas, fewer than "
            "min.insync.replicas of the topic",
            partitions,
        )


def leads_replicated(info: TopicInfo, node_id: int) -> bool:
    """Return whether a broker leads partitions of a topic with durability=replicated."""
    replicated = info.configs.get(DURABILITY) == REPLICATED
    return replicated and any(row.leader == node_id for row in info.partitions)
