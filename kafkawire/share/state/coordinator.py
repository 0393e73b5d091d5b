"""One share coordinator at work: decides, appends, applies; answers after the commit.

The requests of an event-loop iteration are decided together and share a batch of the log, unless
they are about the same share partition: a request is decided on what those before it have changed.
If a commit fails, the partition is loaded again from what is committed, and waiting requests are
answered NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.batches import BatchHead
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer, uuid_text
from kafkawire.coordination import snapshot
from kafkawire.coordination.appender import RecordAppender
from kafkawire.coordination.batches import batches_of
from kafkawire.coordination.coordinator import (
    DEFECT_RETRY_MS,
    CoordinatorPhase,
    EncodeSnapshot,
    PartitionCoordinator,
)
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.coordination.settling import Effect
from kafkawire.coordination.snapshot import Contents, PendingPair, SnapshotLocation
from kafkawire.log.io.ports import Env
from kafkawire.share.state.machine import (
    StateAnswer,
    StateDecision,
    StateRequest,
    StateSettings,
    StateShard,
    StateTopics,
)
from kafkawire.share.state.records import ShareStateRecord, decode_record, encode_record

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SNAPSHOT_MAGIC = b"KWSHARES"
SLICE_RECORDS = 300
"""Records taken from a snapshot, or appended by maintenance, at a time: a few milliseconds."""
DECIDED_AT_ONCE = 100
"""Requests decided and appended per event-loop iteration: about two milliseconds."""
MAX_LOGGED_KEYS = 10
"""Share partitions named in one line of the log."""


class ShareStateLoader(PartitionLoader):
    """The share partitions of one coordinator while they are loaded."""

    contents = "share partitions"
    slice_records = SLICE_RECORDS

    def __init__(
        self,
        env: Env,
        settings: StateSettings,
        topics: StateTopics,
        partition: Partition,
        commit_log: CommitLog,
        place: SnapshotLocation,
    ) -> None:
        super().__init__(env, partition, commit_log, place)
        self.shard = StateShard(settings, topics)

    def _misfit(self, found: Contents, *, gained: bool) -> str:
        # It would bring back share partitions whose tombstones were deleted from the log.
        if found.next_offset < self.partition.log_start:
            return f"the records after its end at offset {found.next_offset} were deleted"
        return super()._misfit(found, gained=gained)

    def apply_record(self, key: Buffer | None, value: Buffer | None, producer_id: int) -> None:
        record = decode_record(key, value)
        if record is not None:
            # At or after the log start: what is before a record that is read is kept until its
            # share partition is written again.
            self.shard.apply(record, self.next_offset)

    def take_pending(self, stored: PendingPair) -> None:
        """Ignore pending offsets: only groups have them."""

    def take_marker(self, buffer: Buffer, position: int, head: BatchHead) -> None:
        """Ignore control batches: only groups have them in their log."""

    async def pass_damage(self, first: int, end: int) -> None:
        logger.critical(
            "%s-%d: offsets %d-%d are damaged: share groups whose newest state was there get "
            "records again that they have acknowledged since the state before",
            self.partition.topic, self.partition.index, first, end - 1,
        )  # fmt: skip


class ShareStateAppender(RecordAppender[ShareStateRecord]):
    """Appends records to one partition of `__share_group_state`."""

    def encode(self, records: Sequence[ShareStateRecord], now_ms: int) -> list[bytearray]:
        pairs = [encode_record(record) for record in records]
        return batches_of(pairs, self.partition.config.max_message_bytes, now_ms)

    def names_of(self, records: Sequence[ShareStateRecord]) -> str:
        keys = [record.key for record in records[:MAX_LOGGED_KEYS]]
        return ", ".join(
            f"group {key.group_id!r} in {uuid_text(key.topic_id)}-{key.partition}" for key in keys
        )

    def error_of(self, code: ErrorCode) -> ErrorCode:
        """Return the error that a leader of share partitions knows: it searches again for the
        coordinator after one that says that it is elsewhere."""
        return _APPEND.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_APPEND = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
}


class WaitingState(NamedTuple):
    """A request without an answer yet."""

    request: StateRequest
    answer: asyncio.Future[StateAnswer]


Decided = tuple[WaitingState, StateDecision]


class ShareStateCoordinator(PartitionCoordinator[ShareStateLoader]):
    """The share coordinator of one partition; call `start` or `begin_empty` once."""

    contents = "share partitions"

    def __init__(
        self,
        env: Env,
        settings: StateSettings,
        topics: StateTopics,
        partition: Partition,
        commit_log: CommitLog,
        folder: str,
    ) -> None:
        self.appender = ShareStateAppender(partition)
        place = SnapshotLocation(
            folder, partition.topic_id, partition.index, SNAPSHOT_MAGIC, "share-state"
        )
        super().__init__(env, partition, commit_log, place, self.appender)
        self._settings = settings
        self._topics = topics
        self.shard = StateShard(settings, topics)
        self._queue: deque[WaitingState] = deque()
        self._waiting: dict[asyncio.Future[StateAnswer], None] = {}

    # -- requests -------------------------------------------------------------------------

    def handle_request(self, request: StateRequest) -> asyncio.Future[StateAnswer]:
        """Decide on a request in this event-loop iteration or the next; the future gets the answer
        after the commit. Hot."""
        answer: asyncio.Future[StateAnswer] = asyncio.get_running_loop().create_future()
        if self.phase is not CoordinatorPhase.ACTIVE:
            answer.set_result(StateAnswer(self.phase.value))
            return answer
        self._waiting[answer] = None
        if not self._queue:
            self.env.call_soon(self._decide_queued)
        self._queue.append(WaitingState(request, answer))
        return answer

    def _decide_queued(self) -> None:
        """Decide on what was submitted, and append the records together."""
        now_ms = self.env.clock.now_ms()
        decided: list[Decided] = []
        changed: set[object] = set()
        for _ in range(min(len(self._queue), DECIDED_AT_ONCE)):
            waiting = self._queue.popleft()
            if waiting.request.key in changed:
                self._carry_out(decided, now_ms)
                decided, changed = [], set()
                # A defect: it is being loaded again, which has answered all.
                if self.phase is not CoordinatorPhase.ACTIVE:
                    return
            decision = self._decide(waiting, now_ms)
            decided.append((waiting, decision))
            if decision.record is not None:
                changed.add(decision.record.key)
        self._carry_out(decided, now_ms)
        if self._queue:
            self.env.call_soon(self._decide_queued)

    def _decide(self, waiting: WaitingState, now_ms: int) -> StateDecision:
        try:
            return self.shard.decide(waiting.request, now_ms)
        # A defect: only this request gets an error.
        except Exception:
            self.appender.log_defect(f"{type(waiting.request).__name__} {waiting.request.key}")
            return StateDecision(StateAnswer(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _carry_out(self, decided: Sequence[Decided], now_ms: int) -> None:
        records = [decision.record for _, decision in decided if decision.record is not None]
        failure = self._append(records, now_ms)
        # One that is too large must not fail the others.
        if failure is ErrorCode.MESSAGE_TOO_LARGE and len(records) > 1:
            for each in decided:
                self._carry_out([each], now_ms)
            return
        effects: list[Effect] = []
        for (_, answer), decision in decided:
            lost = failure is not None and decision.record is not None
            result = StateAnswer(failure) if lost and failure is not None else decision.answer
            effects.append(partial(self._answer, answer, result))
        self.commits.release(effects, appended=bool(records) and failure is None)

    def _append(self, records: Sequence[ShareStateRecord], now_ms: int) -> ErrorCode | None:
        """Append records and apply them; return the error if they could not be appended."""
        if not records:
            return None
        first = self.appender.next_offset
        failure = self.appender.append(records, now_ms)
        if failure is not None:
            return failure
        try:
            for number, record in enumerate(records):
                self.shard.apply(record, first + number)
        except Exception:
            self.appender.log_defect(f"applying {self.appender.names_of(records)}")
            self.reload(delay_ms=DEFECT_RETRY_MS)
        return None

    def _answer(self, answer: asyncio.Future[StateAnswer], result: StateAnswer) -> None:
        self._waiting.pop(answer, None)
        # Done: cancelled by its sender, or answered when the coordinator was unloaded.
        if not answer.done():
            answer.set_result(result)

    # -- maintenance ----------------------------------------------------------------------

    def delete_topics(self, topic_ids: Sequence[bytes]) -> None:
        """Delete the states of deleted topics. What cannot be appended now, `clean` deletes."""
        if self.phase is CoordinatorPhase.ACTIVE:
            records = self.shard.decide_deletions(topic_ids)[:SLICE_RECORDS]
            if self._append(records, self.env.clock.now_ms()) is None and records:
                self.commits.release([], appended=True)

    async def clean(self, interval_ms: int) -> None:
        """Delete the states of topics that are gone, and write those again that have not changed
        for `interval_ms`."""
        life = self._life
        if self.alive(life):
            gone = self.shard.decide_deletions(self.shard.list_deleted_topics())
            await self._append_slowly(gone, life)
        if self.alive(life):
            cold = self.shard.decide_cold(self.env.clock.now_ms(), interval_ms)
            await self._append_slowly(cold, life)

    async def _append_slowly(self, records: Sequence[ShareStateRecord], life: int) -> None:
        for start in range(0, len(records), SLICE_RECORDS):
            part = records[start : start + SLICE_RECORDS]
            # What cannot be appended now is decided again by the next run.
            if not self.alive(life) or self._append(part, self.env.clock.now_ms()) is not None:
                return
            self.commits.release([], appended=True)
            await self.env.slices.pause()

    async def prune(self) -> None:
        """Delete what no share partition needs any more from the start of the log."""
        life = self._life
        if not self.alive(life):
            return
        needed = self.shard.first_needed(self.appender.next_offset)
        if needed <= self.partition.log_start:
            return
        # The records that make the others redundant must not be lost after these.
        try:
            await self.commit_log.wait_until_committed()
            if self.alive(life) and needed <= self.partition.high_watermark:
                await self.partition.delete_records(needed)
        except (KafkaError, OSError) as error:
            logger.warning(
                "%s-%d: deleting the records below offset %d failed, it is tried again: %s",
                self.partition.topic, self.partition.index, needed, error,
            )  # fmt: skip

    # -- loading and ending ---------------------------------------------------------------

    def new_loader(self) -> ShareStateLoader:
        return ShareStateLoader(
            self.env, self._settings, self._topics, self.partition, self.commit_log, self.place
        )

    def activate(self, loaded: ShareStateLoader) -> None:
        self.shard = loaded.shard

    def discard(self) -> None:
        self.shard = StateShard(self._settings, self._topics)
        self._queue.clear()
        for answer in list(self._waiting):
            self._answer(answer, StateAnswer(ErrorCode.NOT_COORDINATOR))

    def before_close(self) -> None:
        while self._queue and self.phase is CoordinatorPhase.ACTIVE:
            self._decide_queued()

    def capture(self) -> EncodeSnapshot | None:
        return partial(self._encode, self.appender.next_offset, self.shard)

    async def _encode(self, next_offset: int, shard: StateShard) -> Contents:
        pairs: list[snapshot.Pair] = []
        # A state may change meanwhile: its record comes after `next_offset`, and applying it again
        # gives the same state.
        for record in shard.records():
            key, value = encode_record(record)
            assert value is not None, "tombstones are not live"
            pairs.append((key, value))
            await self.env.slices.give_way()
        return Contents(next_offset, pairs, [])
