"""One Fetch until it is answered: plan, park, reserve memory, read. See `handlers.fetch`."""

from __future__ import annotations

import logging
from asyncio import TimerHandle, gather
from collections.abc import Callable, Sequence
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Final, cast

from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.fetch import FetchAsk, FetchResult, write_response
from kafkawire.codec.produce import Topic
from kafkawire.codec.types import Part
from kafkawire.handlers.exchange import Exchange, HeldAnswerMemory, Peer
from kafkawire.log.io.file_span import FileSpan, unpin
from kafkawire.log.partition.read_plan import HotRead, SegmentRead, aborted_listed

if TYPE_CHECKING:
    from kafkawire.handlers.fetch.handler import Fetch
    from kafkawire.log.partition.partition import Partition, Plan

logger = logging.getLogger(__name__)

Plans = list[tuple["FetchResult", "Plan"]]

READ_COMMITTED: Final = 1
"""The isolation level of a reader that leaves out the records of aborted transactions."""

JOIN_VIEWS_FROM: Final = 64
"""From this number of views of one partition on, copying them into one buffer is faster than
passing each to the kernel: small batches of many producers are scattered."""

ATTEMPT_BYTES = 16 << 10
"""Cost of a Fetch and of each of its partitions, in bytes that could be sent in the same time, so
that thousands of Fetches of one partition, or a few of many, do not delay all others."""

CONCURRENT_HOT_S = 0.01
"""How long a Fetch with enough data from memory waits for a remote tier; later data is returned by
the next Fetch."""

MEMORY_PATIENCE_S = 10.0
"""How long a Fetch waits for memory that slow clients hold before it is answered without records:
well below the 30 s after which clients give up."""


NOTHING: frozenset[Topic] = frozenset()


class Attempt:
    """One Fetch until it is answered."""

    __slots__ = (
        "ask", "cost", "done", "exchange", "failed", "granted", "handler", "partitions", "refused",
        "spans", "timer", "unread", "woken",
    )  # fmt: skip

    def __init__(
        self,
        handler: Fetch,
        exchange: Exchange,
        ask: FetchAsk,
        refused: frozenset[Topic] = NOTHING,
    ) -> None:
        """`refused`: topics that the client may not read, as decided when the request came."""
        self.refused = refused
        self.handler = handler
        self.exchange = exchange
        self.ask = ask
        self.timer: TimerHandle | None = None
        self.partitions: list[Partition] = []
        self.cost = ATTEMPT_BYTES * (1 + len(ask.items))
        self.granted = 0  # its counted response memory in bytes
        self.spans: list[FileSpan] = []  # of its response, until that is passed on
        self.unread: list[FetchResult] = []  # its response if there is no memory
        self.woken = False
        self.done = False
        self.failed = False  # for some partitions: with an error that may need a leader hint

    def begin(self) -> int:
        """Answer or park; return the cost in bytes."""
        if not self.exchange.peer.closed:
            ask = self.ask
            if not self.try_answer(last=ask.max_wait_ms <= 0 or not ask.items):
                self.park()
        return self.cost

    def begin_later(self) -> int:
        """As `begin`, in a later iteration of the event loop: its time counts for a quota, too."""
        peer, now = self.exchange.peer, self.handler.env.clock.monotonic
        begun = now()
        cost = self.begin()
        if not peer.closed:
            peer.client_quotas().spent(now() - begun)
        return cost

    def try_answer(self, *, last: bool) -> bool:
        """Answer if there are enough bytes, an error, or this is the last attempt."""
        try:
            return self._try_answer(last)
        except Exception:
            self._fail()
            return True

    def _try_answer(self, last: bool) -> bool:  # noqa: C901 (hot: no calls)
        ask = self.ask
        handler = self.handler
        room = self.granted or min(ask.max_bytes, handler.config.fetch_max_bytes)
        results: list[FetchResult] = []
        plans: Plans = []
        partitions: list[Partition] = []
        size = 0
        behind = False
        committed = ask.isolation == READ_COMMITTED
        missing: list[int] = []
        rack = ask.rack if handler.racks.enabled else ""
        if self.refused and all(item[0] in self.refused for item in ask.items):
            last = True  # as in Kafka: together with a partition that may be read it waits
        for item in ask.items:
            topic, index, epoch, offset, last_epoch, most = item
            result = FetchResult(topic, index)
            results.append(result)
            if topic in self.refused:
                result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                if rack:
                    partition = handler.racks.find(topic, index, epoch, offset)
                else:
                    partition = handler.table.find(topic, index, epoch)
                handler.describe(result, partition)
                if rack and self._elsewhere(result, partition, offset):
                    last = True
                    if result.preferred >= 0:
                        continue
                if last_epoch >= 0 and handler.diverged(result, partition, last_epoch, offset):
                    last = True
                    continue
                end = partition.committed_end(offset) if committed else partition.high_watermark
                if offset == end:
                    plan = None  # a reader at the end, like most waiting ones
                else:
                    plan = partition.plan(offset, min(most, room), end, size == 0)
                    # Not parked: as in Kafka after the end, and where the page ends before it.
                    short = committed and (offset > end or end < partition.last_stable_offset)
                    last = last or short
            except NotLoaded as absent:
                missing += absent.numbers
                continue
            except Exception as failure:
                result.error_code = handler.code_of(failure, topic, index, offset)
                last = self.failed = True
                continue
            partitions.append(partition)
            behind = behind or partition.next_offset > partition.high_watermark
            if plan is not None and plan.size_bytes:
                plans.append((result, plan))
                size += plan.size_bytes
                room = max(0, room - plan.size_bytes)
        if missing:
            handler.racks.load_then(missing, lambda: self._loaded(last))
            return True
        if not last and size < ask.min_bytes:
            self.partitions = partitions
            if behind:
                handler.commit_log.want_commit()
            return False
        self._finish(results, plans)
        return True

    def _elsewhere(self, result: FetchResult, partition: Partition, offset: int) -> bool:
        """Return whether another broker leads the partition, or is to be read from; both are
        answered at once."""
        if partition.resigned:
            return True
        result.preferred = self.handler.racks.preferred(
            self.exchange, partition, offset, self.ask.rack
        )
        return result.preferred >= 0

    def _loaded(self, last: bool) -> None:
        """Start again after the missing partitions were loaded or failed to load."""
        if self.done or self.exchange.peer.closed:
            return
        if not self.try_answer(last=last) and self.timer is None:
            self.park()

    def _finish(self, results: list[FetchResult], plans: Plans) -> None:
        self._unpark()
        if plans and isinstance(plans[0][1], SegmentRead) and self._answer_ready(results, plans):
            return
        copied = _copied_bytes(plans)
        if copied > self.granted and not self._take_memory(results, plans, copied):
            return  # planned again within the grant, or waiting
        self._give_back(keep_bytes=copied)
        hot = [(result, plan) for result, plan in plans if isinstance(plan, HotRead)]
        if len(hot) == len(plans):
            releases: list[Callable[[], None]] = []
            for result, plan in hot:
                self._view(result, plan, releases)
            self._answer(results, releases)
        else:
            work = self.exchange.peer.timed(self._read_then_answer(results, plans))
            self.handler.env.spawn(work, "cold fetch")

    def _view(self, result: FetchResult, plan: HotRead, releases: list[Callable[[], None]]) -> None:
        """Fill a result with mapped bytes."""
        self.cost += plan.size_bytes
        plan.partition.traffic.out_bytes += plan.size_bytes
        if self.ask.isolation == READ_COMMITTED:
            result.aborted = aborted_listed(plan)
        views, release = self.handler.commit_log.views(plan)
        if len(views) >= JOIN_VIEWS_FROM:
            fill(result, [b"".join(views)], plan.size_bytes)
            release()
        else:
            fill(result, views, plan.size_bytes)
            releases.append(release)

    def _answer_ready(self, results: list[FetchResult], plans: Plans) -> bool:
        """Answer at once if all of it can be sent from files without a read or a wait. The rest is
        read in the slow lane; so is this while others wait for the event loop."""
        reader = self.handler.commit_log.reader
        if reader.lane.shared or not all(isinstance(plan, SegmentRead) for _, plan in plans):
            return False
        committed = self.ask.isolation == READ_COMMITTED
        found: list[list[Aborted]] = []
        for _, plan in plans:
            aborted: list[Aborted] | None = [] if committed else None
            span = reader.segments.ready(cast(SegmentRead, plan), aborted)
            if span is None:
                unpin(self.spans)
                self.spans = []
                return False
            self.spans.append(span)
            found.append(aborted or [])
        for (result, plan), span, aborted in zip(plans, self.spans, found, strict=True):
            fill(result, [span], len(span))
            result.aborted = listed(aborted)
            self.handler.sent(plan.partition, len(span))
            self.cost += len(span)
        self._give_back()
        self._answer(results, [span.unpin for span in self.spans])
        return True

    async def _read_then_answer(self, results: list[FetchResult], plans: Plans) -> None:
        """Read data that is not mapped, of all partitions concurrently; then continue with the
        response."""
        hot = sum(plan.size_bytes for _, plan in plans if isinstance(plan, HotRead))
        handler = self.handler
        committed = self.ask.isolation == READ_COMMITTED
        patience_s = handler.config.remote_fetch_max_wait_ms / 1000
        if hot and hot >= self.ask.min_bytes:
            patience_s = min(patience_s, CONCURRENT_HOT_S)
        try:
            if len(plans) == 1:
                await handler.read(*plans[0], patience_s, committed=committed, spans=True)
                failures: list[BaseException | None] = []
            else:
                failures = await gather(
                    *(handler.read(*each, patience_s, committed=committed, spans=True)
                      for each in plans),
                    return_exceptions=True,  # the others may have spans, which must be unpinned
                )  # fmt: skip
            self.failed = True  # perhaps
            self.spans = _spans(results)
            for failure in filter(None, failures):
                raise failure
            await self.handler.commit_log.reader.lane.wait()
            copied = sum(result.size_bytes for result in results) - sum(map(len, self.spans))
            if copied > self.granted:  # one batch is read whatever its size
                self.handler.memory.hold(copied - self.granted)
                self.granted = copied
            elif self.spans:
                self._give_back(keep_bytes=copied)
            self._answer(results, [span.unpin for span in self.spans])
        except Exception:
            self._fail()

    def _answer(self, results: list[FetchResult], releases: list[Callable[[], None]]) -> None:
        exchange = self.exchange
        committed = self.ask.isolation == READ_COMMITTED
        tags = None
        if self.failed:
            tags = self.handler.hints.of_fetch(exchange.peer, exchange.version, results)
        body = write_response(results, exchange.version, read_committed=committed, tags=tags)
        if self.handler.quotas.of_clients:
            delay_ms = exchange.peer.client_quotas().fetched(sum(map(len, body)))
            if delay_ms:
                self._answer_throttled(delay_ms, releases)
                return
        counts = self.handler.counts
        for result in results:
            counts.fetched_bytes += result.size_bytes
            if result.preferred >= 0:
                counts.redirects += 1
            if result.error_code:
                counts.failed("Fetch", result.error_code)
        release: Callable[[], None] | None = None
        if len(releases) == 1:
            release = releases[0]
        elif releases:
            release = _ReleaseAll(releases)
        if self.granted:
            release = HeldAnswerMemory(exchange.peer, self.granted, release)
            self.granted = 0
        spans, self.spans = self.spans, []  # released by the exchange from here on
        exchange.answer_parts(body, release, len(spans))
        exchange.peer.fetched()

    def _answer_throttled(self, delay_ms: int, releases: list[Callable[[], None]]) -> None:
        """Answer without partitions, and mute the connection: the client is over a quota."""
        for release in releases:
            release()
        self.spans = []
        self._give_back()
        exchange = self.exchange
        exchange.answer_parts(throttled_response(exchange.version, delay_ms))
        exchange.peer.throttle(delay_ms)
        exchange.peer.fetched()

    def _fail(self) -> None:
        """End the connection after a defect: its requests cannot be answered."""
        peer = self.exchange.peer
        logger.exception("answering a Fetch of client %s failed", peer.client_id)
        self._unpark()
        self._give_back()
        unpin(self.spans)
        peer.abort("its Fetch cannot be answered")

    def _take_memory(self, results: list[FetchResult], plans: Plans, copied: int) -> bool:
        """Reserve memory for data to be read or copied; `plans` loses partitions that must wait.
        Return False if the Fetch continues by itself, within the grant."""
        memory = self.handler.memory
        if self.granted:  # one batch is read whatever its size
            memory.hold(copied - self.granted)
            self.granted = copied
            return True
        self.granted = memory.take(copied)
        if self.granted == copied:
            return True
        if self.granted:
            self.try_answer(last=True)
            return False
        plans[:] = [each for each in plans if isinstance(each[1], HotRead) and not _joins(each[1])]
        if plans:
            return True
        self.unread = results
        self.handler.starved[self] = None
        memory.when_free(copied, self._have_memory)
        self.timer = self.handler.env.call_later(MEMORY_PATIENCE_S, self.give_up)
        self.exchange.pins = self._stop_waiting
        return False

    def _stop_waiting(self) -> None:
        self.handler.starved.pop(self, None)
        self.handler.memory.cancel(self._have_memory)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _have_memory(self, granted_bytes: int) -> None:
        self._stop_waiting()
        self.granted = granted_bytes
        self.handler.budget.later(self._resume)

    def _resume(self) -> int:
        if self.exchange.peer.closed:
            self._give_back()
        else:
            self.try_answer(last=True)
        return self.cost

    def give_up(self) -> None:
        """Answer without records; the client retries."""
        self._stop_waiting()
        if not self.exchange.peer.closed:
            self._answer(self.unread, [])

    def _give_back(self, keep_bytes: int = 0) -> None:
        if self.granted > keep_bytes:
            self.handler.memory.release(self.granted - keep_bytes)
            self.granted = keep_bytes

    def park(self) -> None:
        """Wait for bytes or the deadline."""
        handler = self.handler
        if len(handler.parked) >= handler.config.parked_fetches_max:
            # Beyond the limit a Fetch is answered empty immediately; the client retries.
            self.try_answer(last=True)
            return
        handler.parked[self] = None
        for partition in self.partitions:
            partition.watch(self.wake)
        self.timer = handler.env.call_later(self.ask.max_wait_ms / 1000, self.expire)
        self.exchange.pins = self._unpark  # do not wait for a disconnected client

    def _unpark(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.handler.parked.pop(self, None)
            for partition in self.partitions:
                partition.unwatch(self.wake)

    def wake(self, _partition: Partition) -> None:
        """A partition has new records. Check at the end of the event-loop iteration, in which
        others may follow."""
        if not self.woken:
            self.woken = True
            self.handler.budget.later(self._scan)

    def _scan(self) -> int:
        self.woken = False
        if not self.done:
            if self.exchange.peer.closed:
                self._unpark()
            else:
                self.exchange.peer.at_once(self._answer_if_enough)
        return self.cost

    def _answer_if_enough(self) -> None:
        self.try_answer(last=False)

    def expire(self) -> None:
        """The client's maximum wait is over."""
        if not self.done:
            self.try_answer(last=True)


def limit_size(peer: Peer, ask: FetchAsk) -> None:
    """Let a client with a quota ask for no more than it may get in a window, as in Kafka."""
    ask.max_bytes = peer.client_quotas().fetch_bytes_max(ask.max_bytes)
    ask.min_bytes = min(ask.min_bytes, ask.max_bytes)


def throttled_response(version: int, delay_ms: int) -> list[Part]:
    """Return the response for a client over a quota."""
    return write_response([], version, read_committed=False, throttle_ms=delay_ms)


def listed(aborted: list[Aborted]) -> list[tuple[int, int]]:
    """(producer ID, first offset) of aborted transactions, each once, in the order of their
    markers. Where two parts of an answer know one, the segment's first offset is the true one."""
    lasts = [last for _, _, last in aborted]
    if all(map(lt, lasts, islice(lasts, 1, None))):  # of one part, as almost always
        return [(producer_id, first) for producer_id, first, _ in aborted]
    firsts: dict[tuple[int, int], int] = {}
    for producer_id, first, last in aborted:
        known = firsts.setdefault((last, producer_id), first)
        if first < known:
            firsts[last, producer_id] = first
    return [(producer_id, firsts[last, producer_id]) for last, producer_id in sorted(firsts)]


def fill(result: FetchResult, records: Sequence[Part], size_bytes: int) -> None:
    """Set the records of a partition in the response."""
    result.records = [*records]
    result.size_bytes = size_bytes


class _ReleaseAll:
    """Calls every release, for a response that pins journals of several partitions."""

    __slots__ = ("releases",)

    def __init__(self, releases: list[Callable[[], None]]) -> None:
        self.releases = releases

    def __call__(self) -> None:
        for release in self.releases:
            release()


def _reads(plans: Plans) -> bool:
    """Return whether not all of it is mapped; then all of it is read into buffers."""
    return not all(isinstance(plan, HotRead) for _, plan in plans)


def _spans(results: list[FetchResult]) -> list[FileSpan]:
    """Return the parts of a response that are sent from their files."""
    return [part for each in results for part in each.records if isinstance(part, FileSpan)]


def _joins(plan: Plan) -> bool:
    return isinstance(plan, HotRead) and len(plan.runs) >= JOIN_VIEWS_FROM


def _copied_bytes(plans: Plans) -> int:
    """Return how many bytes of a response are copies rather than views of mapped journals."""
    reads = _reads(plans)
    return sum(plan.size_bytes for _, plan in plans if reads or _joins(plan))
