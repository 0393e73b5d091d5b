"""Fetch v4-18: plan, gather views of the stored batches, or park until there are enough.

v5 asks with and answers the log start; v7 sessions (KIP-227); v9 leader epochs (KIP-320); v11
racks (KIP-392); v12 is flexible and detects a diverged log (KIP-595); v13 names topics by id.

A parked Fetch is woken by its partitions' high watermarks and by a deadline, whichever comes
first; nothing polls. Recent bytes go out as views onto the mapped journals, older ones are read
by the log's pool, so a cold consumer never stops the loop. What is in the remote tier is waited for
as long as `remote.fetch.max.wait.ms` says, in all partitions at once; a partition whose data has
not come by then is answered empty, and the next Fetch finds it.

Not done: sessions (session id 0 is always answered, so clients send full requests, which KIP-227
allows), reading from a follower, transactions (last stable offset = high watermark).
"""

from __future__ import annotations

from asyncio import TimerHandle, gather
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.fetch import (
    FLEXIBLE_FROM,
    FetchAsk,
    FetchItem,
    FetchResult,
    read_request,
    write_response,
)
from kafkawire.codec.produce import ManyItems
from kafkawire.codec.types import Buffer
from kafkawire.handlers.budget import TurnBudget
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.longfetch import FULL, LongFetch
from log.segments.remote import readable_log_start

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from log.partition import Partition, Plan

JOIN_VIEWS_FROM = 64
"""From so many views in one partition's answer on, copying them into one buffer costs less than
handing each to the kernel: small batches of many producers lie scattered."""

TURN_BYTES = 4 << 20
"""What one turn of the loop sends in answers: a millisecond or two of copying by the kernel. All
other clients wait as long."""

ATTEMPT_BYTES = 32 << 10
"""What a Fetch costs beside its bytes, in bytes that could have been sent meanwhile: so that the
thousands who wait for one partition do not have all others wait when it moves."""

BESIDE_HOT_S = 0.01
"""How long a Fetch that has enough from memory waits for a remote tier: what is on its way is there
next time."""


class Fetch:
    """The handler: one for the broker's life."""

    def __init__(self, broker: Broker) -> None:
        self.table = broker.table
        self.segments = broker.log.segments.store
        self.commit_log = broker.log.commit_log
        self.env = broker.env
        self.config = broker.config
        self.counts = broker.counts
        self.parked: set[Attempt | LongFetch] = set()
        self.budget = TurnBudget(broker.env.call_soon, TURN_BYTES)

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Answer at once, start a cold read, or park."""
        exchange = Exchange(peer, version, correlation_id, version >= FLEXIBLE_FROM)
        self.counts.fetches += 1
        try:
            ask = read_request(buf, pos, end, version)
        except ManyItems:
            peer.exchanges.append(exchange)
            LongFetch(self, exchange, block).begin(buf[pos:end])
            return True
        peer.exchanges.append(exchange)
        if ask.session_epoch not in FULL:
            # No session was ever given here: it is another broker's, of this address before us.
            # Only this error makes a client send a full request; silence would starve it.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            exchange.answer_parts(
                write_response([], version, read_committed=False, error_code=code), None
            )
            return True
        self.budget.do(Attempt(self, exchange, ask).begin)
        return True

    def close(self) -> None:
        """Answer what is parked with what there is: the broker is closing."""
        self.budget.finish()
        for attempt in list(self.parked):
            attempt.expire()

    def find(self, item: FetchItem) -> Partition:
        """The partition led here, epoch checked (KIP-320), or KafkaError."""
        topic, index, epoch, *_ = item
        if isinstance(topic, str):
            partition = self.table.named(topic, index)
        else:
            partition = self.table.identified(topic, index)
        if epoch >= 0 and epoch != partition.leader_epoch:
            newer = epoch > partition.leader_epoch
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH
            )
        return partition

    def describe(self, result: FetchResult, partition: Partition) -> None:
        """Fill in where the partition begins and ends."""
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.high_watermark
        result.log_start_offset = readable_log_start(partition, self.segments)

    @staticmethod
    def diverged(result: FetchResult, partition: Partition, last_epoch: int, offset: int) -> bool:
        """KIP-595: the epoch the client read last ended earlier here than it believes."""
        epoch, end_offset = partition.epoch_end(last_epoch)
        if epoch < 0 or end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_epoch or end_offset < offset:
            result.diverging = (epoch, end_offset)
            return True
        return False

    async def read(self, result: FetchResult, plan: Plan) -> None:
        """Fill in what has to be read, or the error of that."""
        try:
            _fill(result, await self.commit_log.read(plan), plan.size_bytes)
        except (KafkaError, OSError) as failure:
            result.error_code = int(code_of(failure))


class Attempt:
    """One Fetch until it is answered."""

    __slots__ = ("ask", "cost", "done", "exchange", "handler", "partitions", "timer", "woken")

    def __init__(self, handler: Fetch, exchange: Exchange, ask: FetchAsk) -> None:
        self.handler = handler
        self.exchange = exchange
        self.ask = ask
        self.timer: TimerHandle | None = None
        self.partitions: list[Partition] = []
        self.cost = ATTEMPT_BYTES
        self.woken = False
        self.done = False

    def begin(self) -> int:
        """Answer or park. What it cost, in bytes."""
        if not self.exchange.peer.closed:
            ask = self.ask
            if not self.try_answer(last=ask.max_wait_ms <= 0 or not ask.items):
                self.park()
        return self.cost

    def try_answer(self, *, last: bool) -> bool:
        """Answer if the bytes are there, something is wrong, or this is the last chance."""
        ask = self.ask
        handler = self.handler
        room = min(ask.max_bytes, handler.config.fetch_max_bytes)
        results: list[FetchResult] = []
        plans: list[tuple[FetchResult, Plan]] = []
        partitions: list[Partition] = []
        size = 0
        behind = False
        missing: list[int] = []
        for item in ask.items:
            topic, index, _, offset, last_epoch, most = item
            result = FetchResult(topic, index)
            results.append(result)
            try:
                partition = handler.find(item)
                handler.describe(result, partition)
                if last_epoch >= 0 and handler.diverged(result, partition, last_epoch, offset):
                    last = True
                    continue
                end = partition.high_watermark
                if offset == end:
                    plan = None  # a reader at the end, which is what most who wait are
                else:
                    plan = partition.plan(offset, min(most, room), end, size == 0)
            except NotLoaded as absent:
                missing += absent.numbers
                continue
            except (KafkaError, OSError) as failure:
                result.error_code = int(code_of(failure))
                last = True
                continue
            partitions.append(partition)
            behind = behind or partition.next_offset > partition.high_watermark
            if plan is not None and plan.size_bytes:
                plans.append((result, plan))
                size += plan.size_bytes
                room = max(0, room - plan.size_bytes)
        if missing:
            handler.table.load_then(missing, lambda: self._loaded(last))
            return True
        if not last and size < ask.min_bytes:
            self.partitions = partitions
            if behind:
                handler.commit_log.want_commit()
            return False
        self._finish(results, plans)
        return True

    def _loaded(self, last: bool) -> None:
        """What was not in memory is, or cannot be: begin again."""
        if self.done or self.exchange.peer.closed:
            return
        if not self.try_answer(last=last) and self.timer is None:
            self.park()

    def _finish(self, results: list[FetchResult], plans: list[tuple[FetchResult, Plan]]) -> None:
        self._unpark()
        if all(plan.hot for _, plan in plans):
            releases: list[Callable[[], None]] = []
            for result, plan in plans:
                self.cost += plan.size_bytes
                views, release = self.handler.commit_log.views(plan)
                if len(views) >= JOIN_VIEWS_FROM:
                    _fill(result, [b"".join(views)], plan.size_bytes)
                    release()
                else:
                    _fill(result, [*views], plan.size_bytes)
                    releases.append(release)
            self._answer(results, releases)
        else:
            self.handler.env.spawn(self._read_then_answer(results, plans), "cold fetch")

    async def _read_then_answer(
        self, results: list[FetchResult], plans: list[tuple[FetchResult, Plan]]
    ) -> None:
        """Read what is not mapped, of all partitions at once; the answer has its turn then."""
        hot = sum(plan.size_bytes for _, plan in plans if plan.hot)
        patience_s = self.handler.config.remote_fetch_max_wait_ms / 1000
        if hot and hot >= self.ask.min_bytes:
            patience_s = min(patience_s, BESIDE_HOT_S)
        for _, plan in plans:
            plan.patience_s = patience_s
        if len(plans) == 1:
            await self.handler.read(*plans[0])
        else:
            await gather(*[self.handler.read(result, plan) for result, plan in plans])

        await self.handler.commit_log.reader.lane.turn()
        self._answer(results, [])

    def _answer(self, results: list[FetchResult], releases: list[Callable[[], None]]) -> None:
        exchange = self.exchange
        counts = self.handler.counts
        for result in results:
            counts.fetched_bytes += result.size_bytes
            if result.error_code:
                counts.failed("Fetch", result.error_code)
        body = write_response(results, exchange.version, read_committed=self.ask.isolation == 1)
        release = None
        if len(releases) == 1:
            release = releases[0]
        elif releases:
            release = _ReleaseAll(releases)
        exchange.answer_parts(body, release)

    def park(self) -> None:
        """Wait for bytes or the deadline."""
        handler = self.handler
        if len(handler.parked) >= handler.config.parked_fetches_max:
            # Beyond the bound a client is told at once that there is nothing yet: it asks again.
            self.try_answer(last=True)
            return
        handler.parked.add(self)
        for partition in self.partitions:
            partition.watchers.add(self.wake)
        self.timer = handler.env.call_later(self.ask.max_wait_ms / 1000, self.expire)
        self.exchange.pins = self._unpark  # a client that goes must not be waited for

    def _unpark(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.handler.parked.discard(self)
            for partition in self.partitions:
                partition.watchers.discard(self.wake)

    def wake(self, _partition: Partition) -> None:
        """A partition moved. Look once the turn is over: more of them may move in it."""
        if not self.woken:
            self.woken = True
            self.handler.budget.later(self._look)

    def _look(self) -> int:
        self.woken = False
        if not self.done:
            if self.exchange.peer.closed:
                self._unpark()
            else:
                self.try_answer(last=False)
        return self.cost

    def expire(self) -> None:
        """The client has waited as long as it wanted to."""
        if not self.done:
            self.try_answer(last=True)


def _fill(result: FetchResult, records: list[Buffer], size_bytes: int) -> None:
    result.records = records
    result.size_bytes = size_bytes


class _ReleaseAll:
    """Calls every release, for an answer that pins more than one partition's journals."""

    __slots__ = ("releases",)

    def __init__(self, releases: list[Callable[[], None]]) -> None:
        self.releases = releases

    def __call__(self) -> None:
        for release in self.releases:
            release()
