"""Markers on their way to the partitions: a queue per broker, one request at a time each.

A coordinator gives work (SendMarkers) and a function that takes results, some partitions at a time.
Each partition goes to the queue of the broker that leads it now; a partition without a leader is
reported so at once. All that waits for a broker goes in one request, up to a bound. After a failed
request the queue of that broker waits, longer each time.

The way to a broker is the port MarkerPort: for this broker a call, for others a WriteTxnMarkers
request. One per broker process, held by kafkawire.transactions.service.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.objectstore.backoff import wait_s
from kafkawire.plural import count
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.transaction import TopicPartition

logger = logging.getLogger(__name__)

MAX_MARKERS_AT_ONCE = 500
"""Partitions in one request: their markers are appended within one event-loop iteration, 500 of 78
bytes take a few milliseconds."""
MAX_MARKERS_NOW = 8
"""Partitions whose markers are appended at once: most transactions have fewer, and the event loop
serves others after a tenth of a millisecond."""
MAX_WAIT_S = 5.0
"""Longest wait after failures: a broker that restarts should not be noticed much later."""

Results = Mapping[TopicPartition, ErrorCode | None]
Report = Callable[[SendMarkers, Results], None]


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, and since which leader epoch."""

    broker: int
    epoch: int


class MarkerPort(Protocol):
    """The cluster, as far as markers need it."""

    def append_at_once(self, work: SendMarkers) -> Results | None:
        """Append the markers to the log that the coordinator writes to, too; their codes. None if
        that is not possible for all of them: nothing was done. They need not be durable, for what
        the coordinator appends after them is lost with them."""
        ...

    def leader_of(self, partition: TopicPartition) -> Leader | None:
        """The leader in the metadata; None if there is no such partition (any more)."""
        ...

    async def write_markers(self, broker: int, work: Sequence[SendMarkers]) -> Sequence[Results]:
        """Have `broker` write these markers; for each work, the codes of its partitions (a missing
        one counts as NETWORK_EXCEPTION). Returns when the markers are durable there, and pending
        offsets materialized. Raises KafkaError or OSError if the outcome is unknown."""
        ...


@dataclass(slots=True)
class _Queued:
    """Partitions of one work that one broker leads, since `leader.epoch`."""

    work: SendMarkers
    report: Report
    leader: Leader


@dataclass(slots=True)
class _Dividing:
    """Work that is being queued in slices. `wanted`: its coordinator is still there."""

    work: SendMarkers
    report: Report
    wanted: bool = True


class MarkerSender:
    """All markers of this broker's coordinators. The queues are bounded by what coordinators hold
    in memory: each partition of a decided transaction is in at most one."""

    __slots__ = ("_closed", "_dividing", "_env", "_failures", "_port", "_queues", "_sending")

    def __init__(self, env: Env, port: MarkerPort) -> None:
        self._env = env
        self._port = port
        self._queues: dict[int, deque[_Queued]] = {}
        self._failures: dict[int, int] = {}
        self._sending: set[int] = set()
        self._dividing: list[_Dividing] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        return sum(len(each.work.partitions) for queue in self._queues.values() for each in queue)

    def append_at_once(self, work: SendMarkers) -> Results | None:
        """Append few markers now; see MarkerPort. None: nothing was done, `send` them."""
        # Not while others are on their way: one of the same producer from before a reload would be
        # written after these, into the transaction after (transaction version 1).
        busy = self._sending or self._dividing
        if self._closed or busy or len(work.partitions) > MAX_MARKERS_NOW:
            return None
        return self._port.append_at_once(work)

    def send(self, work: SendMarkers, report: Report) -> None:
        """Queue the markers of `work`, more than MAX_MARKERS_AT_ONCE in slices. `report` is called
        from the event loop, never from here but for partitions without a leader."""
        if self._closed:
            return
        if len(work.partitions) <= MAX_MARKERS_AT_ONCE:
            self._queue(work, report)
            return
        dividing = _Dividing(work, report)
        self._dividing.append(dividing)
        self._env.spawn(self._divide(dividing), "divide transaction markers")

    async def _divide(self, dividing: _Dividing) -> None:
        """Queue many markers, a request's worth at a time."""
        work, report = dividing.work, dividing.report
        partitions = iter(work.partitions)
        try:
            while portion := frozenset(islice(partitions, MAX_MARKERS_AT_ONCE)):
                if self._closed or not dividing.wanted:
                    return
                self._queue(work._replace(partitions=portion), report)
                await self._env.slices.give_way()
        finally:
            self._dividing.remove(dividing)

    def _queue(self, work: SendMarkers, report: Report) -> None:
        by_leader: dict[Leader, list[TopicPartition]] = {}
        gone: dict[TopicPartition, ErrorCode | None] = {}
        # Sorted: the order of a set differs between processes, and a seed must repeat a run.
        for partition in sorted(work.partitions):
            leader = self._port.leader_of(partition)
            if leader is None:
                gone[partition] = None
            else:
                by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            queue = self._queues.setdefault(leader.broker, deque())
            portion = work._replace(partitions=frozenset(partitions))
            queue.append(_Queued(portion, report, leader))
            self._wake(leader.broker)
        if gone:
            logger.warning(
                "transactional id %s: no markers are written to %s of its transaction, deleted "
                "meanwhile: %s",
                work.transactional_id, count(len(gone), "partition"), sorted(gone)[:5],
            )  # fmt: skip
            report(work, gone)

    def clear_queue(self, report: Report) -> None:
        """Remove what is queued for a coordinator that is unloaded; `report` is the one it gave."""
        for dividing in self._dividing:
            if dividing.report == report:
                dividing.wanted = False
        for queue in self._queues.values():
            kept = [each for each in queue if each.report != report]
            # The same deque: `_take` may be in the middle of it when it calls a `report`.
            queue.clear()
            queue.extend(kept)

    def close(self) -> None:
        self._closed = True
        self._queues.clear()

    # -- one broker -----------------------------------------------------------------------

    def _wake(self, broker: int) -> None:
        # One request at a time keeps markers in order: one that is sent again after a reload is
        # written after the first, and never into the transaction after.
        if broker not in self._sending:
            self._sending.add(broker)
            self._env.spawn(self._drain(broker), f"markers to broker {broker}")

    async def _drain(self, broker: int) -> None:
        try:
            while self._queues.get(broker):
                failures = self._failures.get(broker, 0)
                if failures:
                    await self._env.sleep(wait_s(failures, MAX_WAIT_S, self._env.random.random()))
                await self._send_some(broker)
        finally:
            self._sending.discard(broker)

    async def _send_some(self, broker: int) -> None:
        sent = self._take(broker)
        if not sent:
            return
        try:
            results = await self._port.write_markers(broker, [each.work for each in sent])
        except (KafkaError, OSError) as error:
            self._failures[broker] = self._failures.get(broker, 0) + 1
            logger.warning(
                "broker %d did not answer %s, sending again: %s",
                broker, count(len(sent), "transaction marker"), error,
            )  # fmt: skip
            results = [{} for _ in sent]
        else:
            self._failures.pop(broker, None)
        # What failed comes back with the coordinator's next decision, for a leader that may have
        # changed meanwhile.
        for each, codes in zip(sent, results, strict=True):
            lost = dict.fromkeys(each.work.partitions, ErrorCode.NETWORK_EXCEPTION)
            each.report(each.work, {**lost, **codes})

    def _take(self, broker: int) -> list[_Queued]:
        queue = self._queues.get(broker, deque())
        taken: list[_Queued] = []
        count = 0
        while queue and (not taken or count + len(queue[0].work.partitions) <= MAX_MARKERS_AT_ONCE):
            each = queue.popleft()
            # Of an earlier leader epoch: the partition may be led elsewhere by now.
            if any(self._port.leader_of(at) != each.leader for at in each.work.partitions):
                moved = dict.fromkeys(each.work.partitions, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                each.report(each.work, moved)
                continue
            taken.append(each)
            count += len(each.work.partitions)
        return taken
