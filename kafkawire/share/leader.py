"""The leader of one share partition: drives its state machine, and the persister.

    loading    its state is read from the persister; requests wait
    active     serves members
    ended      by an error of loading, another leader, a deletion, or a stop; a request may begin
               with another ShareLeader

There is one write at a time. What changes meanwhile is in the next one, so the acknowledgements of
many members share a write. They are answered after it. One timer ends locks and delays of retries:
it is set for the earliest, and what has ended is found in one pass over the runs.

A retry that is delayed waits in place, as an available record with a time: its delivery count, its
order and its acknowledgement stay what they are, nothing is copied, and a new leader knows from its
delivery count that the delay begins again. A schedule topic would need a second copy of the record,
an offset of its own, and a transaction of both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.configs.group_config import ShareGroupSettings
from kafkawire.codec.configs.offset_reset import ResetKind
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.share.counts import ShareCounts
from kafkawire.share.dead_letters import DeadLetterWriter, LetterSource
from kafkawire.share.partition import Acknowledge, Acquire, Acquired, ShareDecision, SharePartition
from kafkawire.share.persister import UNSET_OFFSET, Persister, SharePartitionKey
from kafkawire.share.states import RecordState

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

TIMER_MIN_S = 0.05
"""Least time between two passes over the runs for ended locks: at most 10,000 runs, a few
milliseconds. Locks are held for a second at least."""
RETRY_S = 1.0
"""Pause after a failed write, for which the persister has waited itself."""

_CLIENT_CODES = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""Errors of the persister as clients get them; others are UNKNOWN_SERVER_ERROR."""
_ENDING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Errors after which the state in memory is not that of the share partition any more."""


class ShareParts(NamedTuple):
    """The parts of a broker that all leaders use. `settings_of`: the settings of a group now."""

    env: Env
    persister: Persister
    settings_of: Callable[[str], ShareGroupSettings]
    dead_letters: DeadLetterWriter
    counts: ShareCounts


class ShareLeader:
    """The leader of one share partition. `machine`: None while it is loading; `ended`: why it has
    ended; `reading`: a request reads records for it from disk, others
    leave it out."""

    def __init__(
        self,
        parts: ShareParts,
        key: SharePartitionKey,
        partition: Partition,
        on_end: Callable[[ShareLeader], None],
    ) -> None:
        self._parts = parts
        self._env = parts.env
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine: SharePartition | None = None
        self.ended: KafkaError | None = None
        self.reading = False
        self.used_s = self._env.clock.monotonic()
        self._state_epoch = 0
        self._on_end = on_end
        self._watchers: dict[Callable[[], None], None] = {}
        self._waiting: list[asyncio.Future[None]] = []  # for the next write
        self._unsaved = False
        self._writing: asyncio.Task[None] | None = None
        self._burying: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._retiring = False

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index} of share group {self.key.group_id}"

    @property
    def settings(self) -> ShareGroupSettings:
        return self._parts.settings_of(self.key.group_id)

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if it ended now."""
        machine = self.machine
        return (
            machine is not None
            and not (self._watchers or self._waiting or self._unsaved or self.reading)
            and (self._writing is None or self._writing.done())
            and not machine.count_in(RecordState.ACQUIRED)
            and not machine.count_in(RecordState.ARCHIVING)
        )

    def note_use(self) -> None:
        """Note that a request uses it now."""
        self._retiring = False
        self.used_s = self._env.clock.monotonic()

    def now_ms(self) -> int:
        """Return the time of locks, which does not jump."""
        return int(self._env.clock.monotonic() * 1000)

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        self._env.spawn(self._load(), f"load {self}")

    async def _load(self) -> None:
        try:
            state = await self._parts.persister.read(self.key, self.leader_epoch)
            start = state.start_offset
            if start == UNSET_OFFSET:
                start = await self._reset()
            machine = SharePartition.load(state, start, self.now_ms(), self.settings)
        except KafkaError as error:
            self.stop_serving(client_error(error))
            return
        except Exception:
            logger.exception("%s: its state cannot be loaded", self)
            self.stop_serving(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        if self.ended is not None:
            return
        self._state_epoch = state.state_epoch
        self.machine = machine
        self.partition.watch(self._on_partition)
        if state.start_offset == UNSET_OFFSET:
            # Otherwise a leader after this one would choose a later one, and leave records out.
            self._save()
        self._apply(machine.decide_log_start(self.partition.log_start))
        self._set_timer(machine.next_deadline())
        self._on_partition(self.partition)

    async def _reset(self) -> int:
        """Return where the group begins, by its settings."""
        partition, reset = self.partition, self.settings.offset_reset
        if reset.kind is ResetKind.EARLIEST:
            return partition.log_start
        if reset.kind is ResetKind.BY_DURATION:
            found = await partition.offset_for_time(self._env.clock.now_ms() - reset.duration_ms)
            if found is not None:
                return found[0]
        return partition.high_watermark

    def stop_serving(self, error: KafkaError) -> None:
        """Serve no more requests, and answer waiting ones with an error. Another call has no
        effect."""
        if self.ended is not None:
            return
        self.ended = error
        self.partition.unwatch(self._on_partition)
        if self._timer is not None:
            self._timer.cancel()
        if self._burying is not None:
            self._burying.cancel()
        self._answer(error)
        self._on_end(self)
        self._wake()

    def retire(self) -> None:
        """End once all is stored, unless a request uses it before."""
        self._retiring = True
        if self._writing is None or self._writing.done():
            self._end_retired()

    def _end_retired(self) -> None:
        waits = self._watchers or self._unsaved or self.reading
        if not self._retiring or self.machine is None or waits:
            return
        # Dead letters are in progress: a new leader would have to find out which are written.
        if not self.machine.count_in(RecordState.ARCHIVING):
            self.stop_serving(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def check(self) -> None:
        """End if the partition has another leader or epoch, is deleted, or not in memory any
        more."""
        partition = self.partition
        if partition.removed or partition.leader_epoch != self.leader_epoch:
            # Also for a deleted topic: the client finds that out by the next request.
            self.stop_serving(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _on_partition(self, partition: Partition) -> None:
        """Take note of a new high watermark or log start, or of the end of this leader."""
        self.check()
        if self.machine is not None and self.ended is None:
            if partition.log_start > self.machine.start:
                self._apply(self.machine.decide_log_start(partition.log_start))
            self._wake()

    def watch(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when records may be available, or when it has ended."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    def _wake(self) -> None:
        for wake in tuple(self._watchers):
            wake()

    # -- what members ask for --------------------------------------------------------------

    def fetch_offset(self) -> int | None:
        """Return from where records are to be read; None: none may be acquired."""
        if self.machine is None or self.reading:
            return None
        return self.machine.fetch_offset(self.now_ms(), self.settings.max_record_locks)

    def begin_reading(self) -> None:
        """Note that a request reads records from disk, until `stop_reading`."""
        self.reading = True

    def stop_reading(self) -> None:
        self.reading = False
        self._wake()

    def acquire(self, ask: Acquire) -> tuple[list[Acquired], bool]:
        """Acquire records that were read; return also whether anything has changed."""
        if self.machine is None or self.ended is not None:
            return [], False
        made = self.machine.decide_acquire(ask, self.now_ms(), self.settings)
        self._apply(made)
        self._parts.counts.count_acquired(made.acquired)
        return made.acquired, bool(made.changes)

    def acknowledge(
        self, member: str, batches: Sequence[Acknowledge]
    ) -> asyncio.Future[None] | None:
        """Acknowledge records; return what completes when that is stored, None: nothing is. Raises
        KafkaError, as the future does."""
        self.check()
        if self.ended is not None:
            raise self.ended
        if self.machine is None:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "The share partition is loading.")
        made = self.machine.decide_acknowledge(member, batches, self.now_ms(), self.settings)
        self._apply(made)
        self._parts.counts.count_acknowledged(batches)
        return self._next_write() if made.saves else None

    def release(self, member: str) -> None:
        """Release what a member has acquired, whose session has ended."""
        if self.machine is not None and self.ended is None:
            self._apply(self.machine.decide_release(member, self.settings))

    def _next_write(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A client that has gone does not fetch its error.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(future)
        return future

    # -- changes --------------------------------------------------------------------------

    def _apply(self, made: ShareDecision) -> None:
        machine = self.machine
        if machine is None or self.ended is not None:
            return
        self._set_timer(machine.apply(made.changes))
        if made.saves:
            self._save()
        if machine.count_in(RecordState.ARCHIVING):
            self._bury()
        if made.wakes:
            self._wake()

    def _set_timer(self, deadline_ms: int | None) -> None:
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max((deadline_ms - self.now_ms()) / 1000, TIMER_MIN_S)
        self._timer = self._env.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        machine = self.machine
        if machine is not None and self.ended is None:
            before = machine.count_in(RecordState.ACQUIRED)
            self._apply(machine.decide_expire(self.now_ms(), self.settings))
            self._parts.counts.count_expired(before - machine.count_in(RecordState.ACQUIRED))
            self._set_timer(machine.next_deadline())

    # -- writes ---------------------------------------------------------------------------

    def _save(self) -> None:
        self._unsaved = True
        if self._writing is None or self._writing.done():
            # It begins in the next iteration of the event loop: what comes before is in it.
            self._writing = self._env.spawn(self._write(), f"write the state of {self}")

    async def _write(self) -> None:
        while self._unsaved and self.ended is None:
            failure = await self._write_once()
            if failure is not None and self.ended is None:
                logger.warning("%s: its state cannot be stored: %s", self, failure)
                await self._env.sleep(RETRY_S)
        self._end_retired()

    async def _write_once(self) -> KafkaError | None:
        """Write what has changed; return the error, if there is one."""
        machine = self.machine
        assert machine is not None, "it is loaded"
        self._unsaved = False
        write = machine.begin_write()
        waiting, self._waiting = self._waiting, []
        failure: KafkaError | None = None
        try:
            await self._parts.persister.write(
                self.key,
                self._state_epoch,
                self.leader_epoch,
                write.start_offset,
                write.complete_count,
                write.batches,
            )
        except KafkaError as error:
            failure = client_error(error)
        except Exception:
            logger.exception("%s: writing its state failed", self)
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if self.ended is None:
            if failure is not None and failure.code in _ENDING:
                self.stop_serving(failure)
            else:
                stored = failure is None
                self._apply(
                    machine.decide_written(
                        write.number, self.now_ms(), self.settings, stored=stored
                    )
                )
        for future in waiting:
            _complete(future, failure)
        return failure

    def _answer(self, error: KafkaError) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _complete(future, error)

    # -- dead letters ---------------------------------------------------------------------

    def _bury(self) -> None:
        if self._burying is None or self._burying.done():
            self._burying = self._env.spawn(self._write_dead_letters(), f"dead letters of {self}")

    async def _write_dead_letters(self) -> None:
        """Write the dead letters of what waits for one, some at a time, and archive it. Each is
        stored as archived before the next ones are written: see DeadLetterWriter."""
        machine, letters = self.machine, self._parts.dead_letters
        source = LetterSource(self.key, self.partition, self.leader_epoch, self._state_epoch)
        while machine is not None and self.ended is None:
            waiting = machine.dead_letters(letters.AT_ONCE)
            if not waiting:
                return  # begun again when more are stored
            done = await letters.write(source, waiting)
            if self.ended is not None:
                return
            for first, last in done:
                self._apply(machine.decide_dead_lettered(first, last))
            while self._unsaved and not await self._wait_until_saved():
                pass

    async def _wait_until_saved(self) -> bool:
        """Wait for the next write; return whether it was stored, or none will be."""
        try:
            await self._next_write()
        except KafkaError as error:
            logger.warning("%s: the next dead letters wait: %s", self, error)
            return self.ended is not None
        return True


def client_error(error: KafkaError) -> KafkaError:
    """Return an error of the persister as clients get it."""
    code = _CLIENT_CODES.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)
    return KafkaError(code, error.message)


def _complete(future: asyncio.Future[None], failure: KafkaError | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
