"""Fetches of many partitions, which would block the event loop too long.

Such a request is decoded in slices, by the declaration of its message; its partitions are checked
in slices, whenever there may be enough data, and the response is encoded in slices. The next
request of the connection starts after the first check. Otherwise the rules are those of
handlers.fetch, which serves all other Fetches.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import gather
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.compile import DecodeError
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.fetch import TOPIC_IDS_FROM, FetchAsk, FetchItem, FetchResult
from kafkawire.codec.produce import Topic
from kafkawire.codec.types import Buffer
from kafkawire.handlers.exchange import Exchange, HeldAnswerMemory, Pinned
from kafkawire.handlers.fetch.request import READ_COMMITTED, limit_size, throttled_response
from kafkawire.handlers.slices import decoded, encoded, released
from kafkawire.log.partition.read_plan import HotRead, aborted_listed
from kafkawire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from kafkawire.handlers.fetch.handler import Fetch
    from kafkawire.handlers.leader_hints import HintedLeaders
    from kafkawire.log.partition.partition import Partition, Plan

logger = logging.getLogger(__name__)

Plans = list[tuple["FetchResult", "Plan"]]

READS_AT_ONCE = 16
"""Partitions of one request that are read concurrently from files or the remote tier."""

RESCAN_INTERVAL_S = 0.02
"""Minimum time between two checks of all partitions."""

FULL = (0, -1)
"""Session epochs of requests that list all their partitions (KIP-227)."""


class LongFetch:
    """One request. Call `begin` once; `expire` answers it with the available data."""

    def __init__(self, handler: Fetch, exchange: Exchange, block: Pinned) -> None:
        self._handler = handler
        self._exchange = exchange
        self._block = block
        self._slices = handler.env.slices
        self._ask = FetchAsk(0, 0, 0, 0, 0, -1, [], [])
        self._moved = asyncio.Event()
        self._last = False
        self._refused: set[Topic] = set()  # topics that the client may not read
        # of the current check:
        self._results: list[FetchResult] = []
        self._cold: list[tuple[FetchResult, Plan]] = []
        self._releases: list[Callable[[], None]] = []
        self._size_bytes = 0
        self._held_bytes = 0  # counted memory of the response

    def begin(self, body: memoryview) -> None:
        """Serve it in a task."""
        peer = self._exchange.peer
        self._block.pin()
        peer.begin(self._exchange)
        who = f"Fetch of many partitions of client {peer.client_id} at {peer.client_host}"
        self._handler.env.spawn(peer.timed(self._serve(body)), who)

    def expire(self) -> None:
        """Answer with the available data."""
        self._last = True
        self._moved.set()

    def wake(self, _partition: Partition) -> None:
        """A partition has new records."""
        self._moved.set()

    async def _serve(self, body: memoryview) -> None:
        peer = self._exchange.peer
        try:
            await self._decode_and_answer(body)
        except DecodeError as wrong:
            peer.abort(str(wrong))
        except Exception:
            logger.exception("answering a Fetch of client %s failed", peer.client_id)
            peer.abort("its Fetch cannot be answered")
        finally:
            self._hold(0)
            peer.fetched()

    async def _decode_and_answer(self, body: memoryview) -> None:
        exchange, peer = self._exchange, self._exchange.peer
        try:
            await self._decode(body)
        finally:
            self._block.unpin()
        ask = self._ask
        if ask.session_epoch not in FULL:
            refusal = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            await self._answer([refusal])
            peer.served(exchange)
            return
        self._last = self._last or ask.max_wait_ms <= 0 or await self._all_refused()
        await self._handler.table.load((item[0], item[1]) for item in ask.items)
        if self._by_rack():
            await self._handler.racks.load(ask.items)
        enough = await self._scan()
        peer.served(exchange)
        if not enough:
            await self._wait()
        if not peer.closed:
            await self._finish()
        else:
            await self._release()
        await self._slices.run(released(ask.items))

    async def _all_refused(self) -> bool:
        """Decide which topics may be read, once; return whether none may."""
        peer = self._exchange.peer
        if peer.rights is None:
            return False
        some = False
        for item in self._ask.items:
            if item[0] not in self._refused:
                if self._handler.rights.may(peer, item[0]):
                    some = True
                else:
                    self._refused.add(item[0])
            await self._slices.give_way()
        return not some

    async def _decode(self, body: memoryview) -> None:
        version = self._exchange.version
        asked = await decoded(self._slices, FetchRequest, version, body)
        await self._note(asked[0], version >= TOPIC_IDS_FROM)
        await self._slices.run(released(asked))

    async def _note(self, request: FetchRequest, by_id: bool) -> None:
        """Store the requested partitions."""
        ask = self._ask
        ask.max_wait_ms, ask.min_bytes = request.max_wait_ms, request.min_bytes
        ask.max_bytes, ask.isolation = request.max_bytes, request.isolation_level
        ask.session_id, ask.session_epoch = request.session_id, request.session_epoch
        ask.rack = request.rack_id
        if self._handler.quotas.of_clients:
            limit_size(self._exchange.peer, ask)
        for item in _items(request, by_id):
            ask.items.append(item)
            await self._slices.give_way()

    async def _scan(self) -> bool:
        """Check every partition; return whether to answer now."""
        await self._release()
        self._moved.clear()
        room = min(self._ask.max_bytes, self._handler.config.fetch_max_bytes)
        behind = False
        for item in self._ask.items:
            result = FetchResult(item[0], item[1])
            self._results.append(result)
            try:
                if item[0] in self._refused:
                    result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                behind = self._scan_part(item, result, room - self._size_bytes) or behind
            except NotLoaded as failure:
                by_rack = self._by_rack()  # a view that was unloaded again: its leader has it
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if by_rack else code_of(failure)
                result.error_code = int(code)
                self._last = True
            except Exception as failure:
                result.error_code = self._handler.code_of(failure, item[0], item[1], item[3])
                self._last = True
            await self._slices.give_way()
            if self._exchange.peer.closed:
                return True
        if self._last or self._size_bytes >= self._ask.min_bytes:
            return True
        if behind:
            self._handler.commit_log.want_commit()
        return False

    def _scan_part(self, item: FetchItem, result: FetchResult, room: int) -> bool:
        """Plan one partition, and take views of bytes in memory immediately, because they may be
        unmapped later. Return whether some of it waits for a commit."""
        _, _, _, offset, last_epoch, most = item
        handler = self._handler
        if self._by_rack():
            partition = handler.racks.find(item[0], item[1], item[2], offset)
            rack = self._ask.rack
            if not partition.resigned:
                result.preferred = handler.racks.preferred(self._exchange, partition, offset, rack)
            self._last = self._last or partition.resigned or result.preferred >= 0
        else:
            partition = handler.table.find(*item[:3])
        handler.describe(result, partition)
        if result.preferred >= 0:
            return False
        if last_epoch >= 0 and handler.diverged(result, partition, last_epoch, offset):
            self._last = True
            return False
        committed = self._ask.isolation == READ_COMMITTED
        end = partition.committed_end(offset) if committed else partition.high_watermark
        if offset != end:
            first = self._size_bytes == 0
            plan = partition.plan(offset, min(most, max(0, room)), end, first)
            # Not parked: as in Kafka after the end, and where the page ends before it.
            short = committed and (offset > end or end < partition.last_stable_offset)
            self._last = self._last or short
            if plan.size_bytes:
                self._take(result, plan)
        return partition.next_offset > partition.high_watermark

    def _by_rack(self) -> bool:
        return self._handler.racks.enabled and bool(self._ask.rack)

    def _take(self, result: FetchResult, plan: Plan) -> None:
        self._size_bytes += plan.size_bytes
        if not isinstance(plan, HotRead):
            self._cold.append((result, plan))
            return
        if self._ask.isolation == READ_COMMITTED:
            result.aborted = aborted_listed(plan)
        views, release = self._handler.commit_log.views(plan)
        result.records = [b"".join(views)] if len(views) > 1 else [*views]
        result.size_bytes = plan.size_bytes
        if len(views) > 1:
            self._hold(self._held_bytes + plan.size_bytes)
            release()
        else:
            self._releases.append(release)

    async def _release(self) -> None:
        """Release the views of the last check."""
        releases, self._releases = self._releases, []
        for release in releases:
            release()
        results, self._results = self._results, []
        self._cold, self._size_bytes = [], 0
        self._hold(0)
        await self._slices.run(released(results))

    async def _wait(self) -> None:
        """Check again after new records, until there is enough data or the time is over."""
        handler, env = self._handler, self._handler.env
        if len(handler.parked) >= handler.config.parked_fetches_max:
            return
        await self._release()
        handler.parked[self] = None
        self._exchange.pins = self.expire  # do not wait for a disconnected client
        timer = env.call_later(self._ask.max_wait_ms / 1000, self.expire)
        try:
            await self._watch(on=True)
            while not await self._scan():
                await self._release()
                await env.sleep(RESCAN_INTERVAL_S)
                await self._moved.wait()
        finally:
            timer.cancel()
            handler.parked.pop(self, None)
            self._exchange.pins = None
            await self._watch(on=False)

    async def _watch(self, *, on: bool) -> None:
        for item in self._ask.items:
            try:
                partition = self._handler.table.find(item[0], item[1])
            except (KafkaError, NotLoaded):
                continue  # found by the next check
            if on:
                partition.watch(self.wake)
            else:
                partition.unwatch(self.wake)
            await self._slices.give_way()

    async def _finish(self) -> None:
        cold = await self._with_memory(self._cold)
        for at in range(0, len(cold), READS_AT_ONCE):
            some = cold[at : at + READS_AT_ONCE]
            committed = self._ask.isolation == READ_COMMITTED
            reads = [self._handler.read(*each, committed=committed) for each in some]
            await gather(*reads)
        answer = [FetchResponse()]
        exchange = self._exchange
        leaders = self._handler.hints.of_long_fetch(exchange.peer, exchange.version)
        size_bytes = 0
        for result in self._results:
            size_bytes += result.size_bytes
            self._add(answer[0], result, leaders)
            await self._slices.give_way()
        answer[0].node_endpoints = leaders.endpoints()
        releases, self._releases = self._releases, []
        held, self._held_bytes = self._held_bytes, 0
        releases.append(HeldAnswerMemory(self._exchange.peer, held))
        await self._release()
        await self._answer(answer, releases, size_bytes)

    async def _with_memory(self, cold: list[tuple[FetchResult, Plan]]) -> Plans:
        """Return the plans for whose bytes there is memory; the others are answered empty."""
        wanted = sum(plan.size_bytes for _, plan in cold)
        room = granted = await self._handler.take_memory(wanted)
        self._held_bytes += granted
        fitting: Plans = []
        for result, plan in cold:
            room -= plan.size_bytes
            if room < 0 and (fitting or not granted):
                break
            fitting.append((result, plan))
        if room < 0 and granted:  # the first is read whatever its size
            self._hold(self._held_bytes + max(0, fitting[0][1].size_bytes - granted))
        return fitting

    def _hold(self, size_bytes: int) -> None:
        """Count this memory for the response."""
        memory, more = self._handler.memory, size_bytes - self._held_bytes
        self._held_bytes = size_bytes
        if more > 0:
            memory.hold(more)
        elif more < 0:
            memory.release(-more)

    def _add(self, response: FetchResponse, result: FetchResult, leaders: HintedLeaders) -> None:
        if result.error_code:
            self._handler.counts.failed("Fetch", result.error_code)
        if result.preferred >= 0:
            self._handler.counts.redirects += 1
        topic = result.topic
        name, topic_id = (topic, bytes(16)) if isinstance(topic, str) else ("", topic)
        topics = response.responses
        if not topics or (topics[-1].topic, topics[-1].topic_id) != (name, topic_id):
            topics.append(FetchableTopicResponse(topic=name, topic_id=topic_id))
        topics[-1].partitions.append(
            PartitionData(
                partition_index=result.index,
                error_code=result.error_code,
                high_watermark=result.high_watermark,
                last_stable_offset=result.last_stable_offset,
                log_start_offset=result.log_start_offset,
                preferred_read_replica=result.preferred,
                diverging_epoch=EpochEndOffset(*result.diverging) if result.diverging else None,
                current_leader=leaders.current_leader(topic, result.index, result.error_code)
                if result.error_code
                else None,
                aborted_transactions=[AbortedTransaction(*each) for each in result.aborted]
                if self._ask.isolation == READ_COMMITTED
                else None,
                records=cast("list[Buffer]", result.records),  # read without spans
            )
        )

    async def _answer(
        self,
        answer: list[FetchResponse],
        releases: Sequence[Callable[[], None]] = (),
        size_bytes: int = 0,
    ) -> None:
        """Send the only response in `answer`, which has the only reference to it; or an empty one
        if its client is over a quota. `size_bytes`: of its records."""
        # The number of bytes is limited by fetch.max.bytes.
        parts = await encoded(self._slices, answer, self._exchange.version, math.inf)

        def release() -> None:
            for one in releases:
                one()

        peer = self._exchange.peer
        delay_ms = 0
        if self._handler.quotas.of_clients:
            delay_ms = peer.client_quotas().fetched(sum(map(len, parts)))
        if not delay_ms:
            self._handler.counts.fetched_bytes += size_bytes
            self._exchange.answer_parts(parts, release)
            return
        release()
        self._exchange.answer_parts(throttled_response(self._exchange.version, delay_ms))
        peer.throttle(delay_ms)


def _items(request: FetchRequest, by_id: bool) -> Iterator[FetchItem]:
    for asked in request.topics:
        topic: Topic = asked.topic_id if by_id else asked.topic
        for row in asked.partitions:
            yield (
                topic, row.partition, row.current_leader_epoch, row.fetch_offset,
                row.last_fetched_epoch, row.partition_max_bytes,
            )  # fmt: skip
