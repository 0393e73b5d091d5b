"""One Fetch until it is answered: plan, park, reserve memory, read. See `handlers.fetch`."""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import TimerHandle, gather
from collections.abc import Callable, Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, cast

from kafkawire.broker.partitions import NotLoaded, ViewTopic
from kafkawire.codec.compile import DecodeError
from kafkawire.codec.configs.view_rules import VIEW_FILTER
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.fetch import (
    MAX_ITEMS,
    TOPIC_IDS_FROM,
    FetchAsk,
    FetchItem,
    FetchResult,
    write_response,
)
from kafkawire.codec.flat import Tags, Topic
from kafkawire.codec.types import Buffer, Part
from kafkawire.handlers.exchange import Exchange, HeldAnswerMemory, Peer, Pinned
from kafkawire.handlers.fetch.aborted import list_aborted
from kafkawire.handlers.fetch.context import FetchContext, find_divergence
from kafkawire.handlers.fetch.sessions import PLANNED_MAX, FetchSession
from kafkawire.handlers.fetch.view_reads import ViewRead, make_skip
from kafkawire.handlers.slices import joining
from kafkawire.log.io.file_span import FileSpan, unpin
from kafkawire.log.io.slices import empty_slowly
from kafkawire.log.partition.read_plan import HotRead, JournalRead, SegmentRead, aborted_listed

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition, Plan
    from kafkawire.security.acls.rights import Rights

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

NEW_SESSION: Final = 0
NO_SESSION: Final = -1
FULL: Final = (NEW_SESSION, NO_SESSION)
"""Session epochs of requests that list all their partitions (KIP-227)."""

READS_AT_ONCE = 16
"""Partitions of a request with many that are read concurrently from files or the remote tier."""

RESCAN_INTERVAL_S = 0.02
"""Minimum time between two plans of a request with many partitions."""


NOTHING: Final[AbstractSet[Topic]] = frozenset()


class Attempt:
    """One Fetch until it is answered.

    Its steps are generators. Those of a request with few partitions run to their end at once, and
    it waits without a task: its timer, its partitions and the response memory call it. Those of a
    request with many run in slices, in a task (`serve`), which waits for `moved`; what follows
    from one step to the next is in `try_answer` for few, and in `serve` for many.
    """

    __slots__ = (
        "ask", "cold", "context", "copied_bytes", "cost", "done", "enough", "exchange", "failed",
        "granted", "join_from", "joined_bytes", "last", "missing", "moved", "partitions", "plans",
        "refused", "releases", "results", "room", "scanned", "session", "size_bytes", "spans",
        "timer", "until_s", "viewed_bytes", "views", "watched", "woken",
    )  # fmt: skip

    def __init__(self, context: FetchContext, exchange: Exchange) -> None:
        self.context = context
        self.exchange = exchange
        self.ask = FetchAsk()
        self.session: FetchSession | None = None
        self.refused = NOTHING  # topics that may not be read
        self.timer: TimerHandle | None = None
        self.moved: asyncio.Event | None = None  # of many partitions: there may be something to do
        self.join_from = JOIN_VIEWS_FROM
        self.cost = 0
        self.last = False  # answer with what there is
        self.granted = 0  # its counted response memory in bytes
        self.spans: list[FileSpan] = []  # of its response, until that is passed on
        self.releases: list[Callable[[], None]] = []  # of the views in its response, as well
        self.watched: list[Partition] = []
        self.woken = False
        self.done = False
        self.failed = False  # for some partitions: with an error that may need a leader hint
        self.scanned: dict[tuple[Topic, int], int] = {}  # of views: offsets without matches so far
        self.until_s = 0.0  # of views: the end of the wait
        # of the last plan:
        self.results: list[FetchResult] = []
        self.plans: Plans = []
        self.views: list[ViewRead] = []
        self.partitions: list[Partition] = []
        self.missing: list[int] = []  # not in memory
        self.enough = False
        self.room = self.size_bytes = 0
        self.copied_bytes = 0  # of its bytes: copies rather than views of mapped journals
        # of the response:
        self.viewed_bytes = 0  # from mapped journals
        self.joined_bytes = 0  # those of them that were copied
        self.cold: Plans = []  # what must be read

    def prepare(self) -> bool:
        """Check what concerns the whole request: its session, and the client's quota. Return False
        if it was answered with an error."""
        ask, context = self.ask, self.context
        if ask.session_epoch != NO_SESSION or ask.session_id:
            try:
                self.session = self._find_session()
            except KafkaError as refused:  # the client sends a full request
                self._answer_empty(refused.code)
                return False
        count = len(ask.items) if self.session is None else context.sessions.count_due(ask)
        self.cost = ATTEMPT_BYTES * (1 + count)
        if context.quotas.of_clients:
            limit_size(self.exchange.peer, ask)
        self.last = ask.max_wait_ms <= 0 or (not ask.items and self.session is None)
        return True

    def _find_session(self) -> FetchSession | None:
        """Return the session that the request continues or makes. Raises KafkaError."""
        ask, sessions, peer = self.ask, self.context.sessions, self.exchange.peer
        by_id = self.exchange.version >= TOPIC_IDS_FROM
        if ask.session_epoch not in FULL:
            return sessions.find(ask, peer, by_id=by_id)
        if ask.session_id:
            sessions.remove(ask.session_id, peer)
        by_rack = ask.rack and self.context.racks.enabled
        if ask.session_epoch == NEW_SESSION and not by_rack:
            return sessions.make(peer, len(ask.items), by_id=by_id)
        return None

    def check_rights(self, rights: Rights) -> Generator[None, None, None]:
        """Find the topics that the client may not read. Kept for all plans of the request."""
        return self._check_rights(rights, self.ask.items)

    def _check_rights(
        self, rights: Rights, items: Sequence[FetchItem]
    ) -> Generator[None, None, None]:
        refused: set[Topic] = set()
        readable = not items
        for item in items:
            topic = item[0]
            if topic not in rights.reads and (
                topic in refused or not self.context.rights.may(self.exchange.peer, topic)
            ):
                refused.add(topic)
            else:
                readable = True
            yield
        self.refused = refused
        if not readable:
            self.last = True  # as in Kafka: together with a partition that may be read it waits

    def answer_or_park(self) -> int:
        """Answer or park; return the cost in bytes."""
        if not self.exchange.peer.closed and not self.try_answer():
            self._park()
        return self.cost

    def answer_or_park_later(self) -> int:
        """As `answer_or_park`, in a later iteration of the event loop: its time counts for a quota,
        too."""
        peer, now = self.exchange.peer, self.context.env.clock.monotonic
        begun = now()
        cost = self.answer_or_park()
        if not peer.closed:
            peer.client_quotas().record_loop_time(now() - begun)
        return cost

    def begin_many(self, decoding: Generator[None, None, None], block: Pinned) -> None:
        """Serve a request of many partitions in a task."""
        peer = self.exchange.peer
        self.moved = asyncio.Event()
        self.join_from = 2  # so that the response has not many times more parts than partitions
        block.pin()
        peer.note_started(self.exchange)
        who = f"Fetch of many partitions of client {peer.client_id} at {peer.client_host}"
        self.context.env.spawn(peer.meter_work(self.serve(self.moved, decoding, block)), who)

    async def serve(
        self, moved: asyncio.Event, decoding: Generator[None, None, None], block: Pinned
    ) -> None:
        """Take the steps of a request of many partitions in slices. The next request of the
        connection starts after the first plan."""
        peer, slices = self.exchange.peer, self.context.env.slices
        try:
            try:
                await slices.run(decoding)
            finally:
                block.unpin()
            if self.prepare():
                if self.session is not None:
                    await slices.run(self.session.update(self.ask))
                elif peer.rights is not None:
                    await slices.run(self.check_rights(peer.rights))
                await self._load_many()
                await self._plan_many(moved)
                if not peer.closed:
                    await self._read_cold()
                    await slices.run(self._answer())
        except DecodeError as wrong:
            peer.abort(str(wrong))
        except Exception:
            self._fail()
        finally:
            self._release()
            peer.note_served(self.exchange)
            await slices.run(self._unwatch())
            await self._free_many()

    async def _load_many(self) -> None:
        context, ask = self.context, self.ask
        await context.table.load(self._keys())
        if context.racks.enabled and ask.rack:
            await context.racks.load(ask.items)

    def _keys(self) -> Iterator[tuple[Topic, int]]:
        # What is due later has been in memory since it was planned.
        session = self.session
        for item in self.ask.items if session is None else session.choose(PLANNED_MAX):
            yield item[0], item[1]

    async def _plan_many(self, moved: asyncio.Event) -> None:
        """Plan until there is enough to answer, and memory for it."""
        env, peer = self.context.env, self.exchange.peer
        await env.slices.run(self._plan())
        peer.note_served(self.exchange)
        while not peer.closed:
            if self.enough:
                self._end_wait()
                if self._take_memory():
                    break
                if not self.granted:
                    await env.slices.run(self._drop_copies())
                    if self.plans:
                        break
                    self._wait_for_memory()
                    while self in self.context.starved:
                        moved.clear()
                        await moved.wait()
                    if not self.granted:
                        break
            elif self.timer is None:
                if not self._begin_wait():
                    break
                await env.slices.run(self._watch())
            else:
                await env.sleep(RESCAN_INTERVAL_S)
                await moved.wait()
            moved.clear()
            await self._free_plan()
            await env.slices.run(self._plan())
        self._give_back(keep_bytes=self.copied_bytes)
        await env.slices.run(self._view())

    async def _free_plan(self) -> None:
        give_way = self.context.env.slices.give_way
        await empty_slowly(self.results, give_way)
        await empty_slowly(self.plans, give_way)
        await empty_slowly(self.partitions, give_way)

    async def _free_many(self) -> None:
        await self._free_plan()
        give_way = self.context.env.slices.give_way
        await empty_slowly(self.cold, give_way)
        await empty_slowly(self.ask.items, give_way)

    def try_answer(self) -> bool:
        """Answer if there are enough bytes, an error, or this is the last attempt."""
        try:
            for _ in self._plan():
                pass
            if self.missing:
                self.context.racks.load_then(self.missing, self._retry_after_load)
                return True
            if not self.enough:
                return False
            self._finish()
            return True
        except Exception:
            self._fail()
            return True

    def _retry_after_load(self) -> None:
        """Start again after the missing partitions were loaded or failed to load."""
        if self.done or self.exchange.peer.closed:
            return
        if not self.try_answer() and self.timer is None:
            self._park()

    def _park(self) -> None:
        """Wait for bytes or the deadline."""
        if self._begin_wait():
            for _ in self._watch():
                pass
        else:
            self.last = True
            self.try_answer()

    def _finish(self) -> None:
        """Read what was planned, and answer."""
        self._unpark()
        if not self.views and self._answer_ready():
            return
        last = self.last
        if not self._take_memory():
            if self.granted:
                self.try_answer()  # planned again within the grant
                return
            for _ in self._drop_copies():
                pass
            if not self.plans:
                self._wait_for_memory()
                return
        self._give_back(keep_bytes=self.copied_bytes)
        for _ in self._view():
            pass
        if self.cold or self.views:
            work = self.exchange.peer.meter_work(self._read_then_answer(last))
            self.context.env.spawn(work, "cold fetch")
        else:
            self._answer_at_once()

    async def _read_then_answer(self, last: bool) -> None:
        try:
            await self._read_cold()
            if self.views and not last and await self._wait_for_matches():
                return
            self._answer_at_once()
        except Exception:
            self._fail()

    async def _wait_for_matches(self) -> bool:
        """Wait for records after those that were scanned without a match; return False if the
        Fetch is to be answered now."""
        env = self.context.env
        left_s = self.until_s - env.clock.monotonic()
        for result in self.results:
            found = result.size_bytes and (result.topic, result.index) not in self.scanned
            if left_s <= 0 or result.error_code or found:
                return False
        for view in self.views:
            if self.scanned[view.result.topic, view.result.index] < view.plan.end:
                return False  # the next Fetch scans more
        self._give_back()
        self.ask.max_wait_ms = int(left_s * 1000)
        self.cold, self.last, self.failed, self.done = [], False, False, False
        await env.sleep(min(RESCAN_INTERVAL_S, left_s))
        if not self.exchange.peer.closed and not self.try_answer():
            self._park()
        return True

    def _answer_at_once(self) -> None:
        for _ in self._answer():
            pass

    def _plan(self) -> Generator[None, None, None]:
        """Plan the read of each partition. Sets `enough` if there are enough bytes or an error, or
        if this is the last plan; not if partitions are `missing`."""
        context, ask, peer = self.context, self.ask, self.exchange.peer
        self.room = self.granted or min(ask.max_bytes, context.config.fetch_max_bytes)
        self.size_bytes = self.copied_bytes = 0
        self.enough = False
        self.plans, self.missing, self.partitions, self.views = [], [], [], []
        results = self.results = []
        behind = False
        items = ask.items if self.session is None else (yield from self._choose(self.session))
        for item in items:
            result = FetchResult(item[0], item[1])
            results.append(result)
            try:
                behind = self._plan_partition(item, result) or behind
            except Exception as failure:
                behind = self._plan_otherwise(item, result, failure) or behind
            yield
            if peer.closed:
                return
        if self.missing:
            return
        # If more are due than were chosen, the next request gets them.
        more = self.session is not None and len(items) >= self._most()
        self.enough = self.last or more or self.size_bytes >= ask.min_bytes
        if behind and not self.enough:
            context.commit_log.want_commit()

    def _plan_otherwise(self, item: FetchItem, result: FetchResult, failure: Exception) -> bool:
        """Plan the read of a view, as `_plan_partition` does; set the error of other partitions, or
        have them loaded."""
        context = self.context
        if isinstance(failure, ViewTopic):
            try:
                return self._plan_view(item, result, failure)
            except Exception as other:
                failure = other
        if isinstance(failure, NotLoaded):
            if self.moved is None:
                self.missing += failure.numbers
                return False
            # Unloaded again; a view of another broker's partition: its leader has it.
            by_rack = self.ask.rack and context.racks.enabled
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if by_rack else code_of(failure)
            result.error_code = int(code)
        else:
            result.error_code = context.code_of(failure, item[0], item[1], item[3])
        self.last = self.failed = True
        return False

    def _plan_view(self, item: FetchItem, result: FetchResult, view: ViewTopic) -> bool:
        """Plan the read of the source of a view, which the client must be able to read, too."""
        topic, index, epoch, offset, last_epoch, most = item
        context, ask, peer = self.context, self.ask, self.exchange.peer
        if not context.rights.may(peer, view.source):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = context.views.find(view, index, epoch)
        if not self.until_s:
            self.until_s = context.env.clock.monotonic() + ask.max_wait_ms / 1000
        if self.session is not None:
            self.session.watch_view(item, partition)
        context.describe(result, partition)
        if last_epoch >= 0 and find_divergence(result, partition, last_epoch, offset):
            self.last = True
            return False
        committed = ask.isolation == READ_COMMITTED
        begin = max(offset, self.scanned.get((topic, index), offset))
        end = partition.committed_end(begin) if committed else partition.high_watermark
        self.partitions.append(partition)
        behind = partition.next_offset > partition.high_watermark
        if begin != end:
            plan = partition.plan(begin, min(most, self.room), end, self.size_bytes == 0)
            short = committed and (begin > end or end < partition.last_stable_offset)
            self.last = self.last or short
            size = plan.size_bytes
            if size:
                wanted = view.view.configs.get(VIEW_FILTER, "")
                if not wanted:
                    self.plans.append((result, plan))
                else:
                    self.views.append(ViewRead(result, partition, plan, wanted))
                self.size_bytes += size
                self.room = max(0, self.room - size)
                self.copied_bytes += size
                return behind
        if begin > offset:
            result.records = [make_skip(begin, -1)]
            result.size_bytes = len(result.records[0])
        return behind

    def _choose(self, session: FetchSession) -> Generator[None, None, list[FetchItem]]:
        """Return what is asked of the partitions of a session that are due."""
        items = session.choose(self._most())
        if self.exchange.peer.rights is not None:
            yield from self._check_rights(self.exchange.peer.rights, items)
        return items

    def _most(self) -> int:
        return MAX_ITEMS if self.moved is None else PLANNED_MAX

    def _plan_partition(self, item: FetchItem, result: FetchResult) -> bool:
        """Plan the read of one partition; return whether some of it waits for a commit. Hot."""
        topic, index, epoch, offset, last_epoch, most = item
        if topic in self.refused:
            result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return False
        context, ask = self.context, self.ask
        if ask.rack and context.racks.enabled:
            found = self._find_by_rack(item, result)
            if found is None:
                return False
            partition = found
        else:
            partition = context.table.find(topic, index, epoch)
            if self.session is not None:
                self.session.watch(item, partition)  # before its offsets are read
            context.describe(result, partition)
        if last_epoch >= 0 and find_divergence(result, partition, last_epoch, offset):
            self.last = True
            return False
        committed = ask.isolation == READ_COMMITTED
        end = partition.committed_end(offset) if committed else partition.high_watermark
        if offset != end:  # most waiting readers are at the end
            plan = partition.plan(offset, min(most, self.room), end, self.size_bytes == 0)
            # Not parked: as in Kafka after the end, and where the page ends before it.
            short = committed and (offset > end or end < partition.last_stable_offset)
            self.last = self.last or short
            size = plan.size_bytes
            if size:
                self.plans.append((result, plan))
                self.size_bytes += size
                self.room = max(0, self.room - size)
                if not isinstance(plan, HotRead) or len(plan.runs) >= self.join_from:
                    self.copied_bytes += size
        self.partitions.append(partition)
        return partition.next_offset > partition.high_watermark

    def _find_by_rack(self, item: FetchItem, result: FetchResult) -> Partition | None:
        """Return the partition, or a part of it, that a client with a rack reads here; None if it
        is to read elsewhere, or to wait."""
        topic, index, epoch, offset, _, _ = item
        racks = self.context.racks
        partition = racks.find(topic, index, epoch, offset)
        self.context.describe(result, partition)
        if not partition.resigned:
            result.preferred = racks.find_preferred_read_replica(
                self.exchange, partition, offset, self.ask.rack
            )
            self.last = self.last or result.preferred >= 0
            return partition if result.preferred < 0 else None
        self.last = self.last or partition.removed  # a view, which does not change
        # The leader has sent the client here, and the copy may get the offset at any moment.
        if offset > partition.next_offset and not self.last:
            self.partitions.append(partition)
            return None
        return partition

    def _view(self) -> Generator[None, None, None]:
        """Fill the results with mapped bytes. The other plans are those that must be read."""
        committed = self.ask.isolation == READ_COMMITTED
        commit_log = self.context.commit_log
        for result, plan in self.plans:
            if not isinstance(plan, HotRead) or (
                self.moved is not None and not commit_log.reader.is_mapped(plan, committed)
            ):
                self.cold.append((result, plan))
                yield
                continue
            size = plan.size_bytes
            self.cost += size
            self.viewed_bytes += size
            plan.partition.traffic.out_bytes += size
            if committed:
                result.aborted = aborted_listed(plan)
            result.size_bytes = size
            spans: list[FileSpan] | None = None
            if self.moved is None and not self.exchange.peer.encrypted:
                spans = commit_log.reader.find_spans(plan)
            if spans is not None:
                result.records = [*spans]
                self.spans += spans
                yield
                continue
            views, release = commit_log.views(plan)
            if len(views) >= self.join_from:
                result.records = [b"".join(views)]
                self.joined_bytes += size
                release()
            else:
                result.records = [*views]
                self.releases.append(release)
            yield

    def _answer_ready(self) -> bool:
        """Answer at once if all of it can be sent from files without a read or a wait. The rest is
        read in the slow lane; so is this while others wait for the event loop."""
        plans = self.plans
        reader = self.context.commit_log.reader
        if not plans or isinstance(plans[0][1], HotRead) or reader.lane.shared:
            return False
        committed = self.ask.isolation == READ_COMMITTED
        found: list[tuple[list[FileSpan], list[tuple[int, int]]]] = []
        for _, plan in plans:
            spans: list[FileSpan] | None = None
            listed: list[tuple[int, int]] = []
            if isinstance(plan, JournalRead):
                spans = reader.find_spans(plan)
                if spans and committed:
                    listed = aborted_listed(plan)
            elif isinstance(plan, SegmentRead):
                aborted: list[Aborted] | None = [] if committed else None
                span = reader.segments.ready(plan, aborted)
                if span is not None:
                    spans, listed = [span], list_aborted(aborted or [])
            if spans is None:
                unpin(self.spans)
                self.spans = []
                return False
            self.spans += spans
            found.append((spans, listed))
        for (result, plan), (spans, listed) in zip(plans, found, strict=True):
            result.records = [*spans]
            result.size_bytes = sum(map(len, spans))
            result.aborted = listed
            self.context.count_sent(plan.partition, result.size_bytes)
            self.cost += result.size_bytes
        self._give_back()
        self._answer_at_once()
        return True

    async def _read_cold(self) -> None:
        """Read data that is not mapped, of several partitions concurrently."""
        context, cold = self.context, self.cold
        committed = self.ask.isolation == READ_COMMITTED
        patience_s = context.config.remote_fetch_max_wait_ms / 1000
        if self.viewed_bytes and self.viewed_bytes >= self.ask.min_bytes:
            patience_s = min(patience_s, CONCURRENT_HOT_S)
        few = self.moved is None  # spans keep files open: no more than a few partitions need
        at_once = max(1, len(cold)) if few else READS_AT_ONCE
        read_bytes = sent_bytes = 0  # into memory, and by spans
        for at in range(0, len(cold), at_once):
            some = cold[at : at + at_once]
            reads = [
                context.read(*each, patience_s, committed=committed, spans=few) for each in some
            ]
            if len(reads) == 1:
                await reads[0]
                failures: list[BaseException | None] = []
            else:  # the others may have spans, which must be unpinned
                failures = await gather(*reads, return_exceptions=True)
            self.failed = True  # perhaps
            for result, _ in some:
                read_bytes += result.size_bytes
                spans = [part for part in result.records if isinstance(part, FileSpan)]
                self.spans += spans
                sent_bytes += sum(map(len, spans))
            for failure in filter(None, failures):
                raise failure
        if self.views:
            read_bytes += await self._read_views(patience_s)
        if cold:
            await context.commit_log.reader.lane.wait()
        copied = self.joined_bytes + read_bytes - sent_bytes
        if copied > self.granted:  # one batch is read whatever its size
            context.memory.add_bytes(copied - self.granted)
            self.granted = copied
        elif sent_bytes:
            self._give_back(keep_bytes=copied)

    async def _read_views(self, patience_s: float) -> int:
        """Scan the sources of views; return the bytes that match."""
        context, committed = self.context, self.ask.isolation == READ_COMMITTED
        budget = context.views.begin(self.exchange.peer)
        self.failed = True  # perhaps
        read_bytes = 0
        for at in range(0, len(self.views), READS_AT_ONCE):
            some = self.views[at : at + READS_AT_ONCE]
            outcomes = await gather(
                *[
                    context.views.read(each, budget, patience_s, committed=committed)
                    for each in some
                ],
                return_exceptions=True,
            )
            for view, outcome in zip(some, outcomes, strict=True):
                result = view.result
                if isinstance(outcome, BaseException):
                    if not isinstance(outcome, Exception):
                        raise outcome
                    result.error_code = context.code_of(
                        outcome, result.topic, result.index, view.plan.offset
                    )
                    continue
                offset, matches = outcome
                if matches:
                    self.scanned.pop((result.topic, result.index), None)
                else:
                    self.scanned[result.topic, result.index] = offset
                context.count_sent(view.partition, result.size_bytes)
                read_bytes += result.size_bytes
        return read_bytes

    def _find_hints(self) -> Generator[None, None, Tags | None]:
        leaders = self.context.hints.of_fetch(self.exchange.peer, self.exchange.version)
        for result in self.results:
            leaders.add(result.topic, result.index, result.error_code)
            yield
        return leaders.tags()

    def _answer(self) -> Generator[None, None, None]:  # noqa: C901 (hot: few generators)
        """Encode the response and send it; an empty one if the client is over a quota."""
        exchange, context, results = self.exchange, self.context, self.results
        peer = exchange.peer
        committed = self.ask.isolation == READ_COMMITTED
        session, session_id = self.session, 0
        if session is not None:
            session_id = session.id
            # A new client needs all partitions, with their offsets.
            known = yield from session.settle(results, committed=committed)
            if self.ask.session_epoch != NEW_SESSION:
                results = self.results = known
            context.sessions.use(session)
        tags = (yield from self._find_hints()) if self.failed else None
        body: list[Part] = []
        steps = write_response(
            body, results, exchange.version,
            read_committed=committed, session_id=session_id, tags=tags,
        )  # fmt: skip
        if self.moved is None:
            for _ in steps:
                yield
        else:  # without spans; the size is limited by fetch.max.bytes
            joined: list[Buffer] = []
            yield from joining(steps, cast("list[Buffer]", body), joined, math.inf)
            body = [*joined, *body]
        if context.quotas.of_clients:
            delay_ms = peer.client_quotas().record_fetch(sum(map(len, body)))
            if delay_ms:
                self._release()
                self._answer_empty(throttle_ms=delay_ms)
                return
        counts = context.counts
        for result in results:
            counts.fetched_bytes += result.size_bytes
            if result.preferred >= 0:
                counts.redirects += 1
            if result.error_code:
                counts.count_error("Fetch", result.error_code)
            yield
        spans, self.spans = self.spans, []  # released by the exchange from here on
        releases, self.releases = self.releases, []
        releases += [span.unpin for span in spans]
        release: Callable[[], None] | None = None
        if len(releases) == 1:
            release = releases[0]
        elif releases:
            release = _ReleaseAll(releases)
        if self.granted:
            release = HeldAnswerMemory(peer, self.granted, release)
            self.granted = 0
        exchange.answer_parts(body, release, len(spans))
        peer.note_fetched()

    def _answer_empty(self, error_code: int = 0, throttle_ms: int = 0) -> None:
        """Answer without partitions; mute the connection of a client over a quota."""
        exchange, session = self.exchange, self.session
        session_id = 0
        if session is not None:
            session.put_back()
            session_id = session.id
        body: list[Part] = []
        for _ in write_response(
            body,
            [],
            exchange.version,
            read_committed=False,
            error_code=error_code,
            session_id=session_id,
            throttle_ms=throttle_ms,
        ):
            pass
        exchange.answer_parts(body)
        if throttle_ms:
            exchange.peer.throttle(throttle_ms)
        exchange.peer.note_fetched()

    def _fail(self) -> None:
        """End the connection after a defect: its requests cannot be answered."""
        peer = self.exchange.peer
        logger.exception("answering a Fetch of client %s failed", peer.client_id)
        self._unpark()
        self._release()
        peer.abort("its Fetch cannot be answered")

    def _release(self) -> None:
        """Release what an unanswered response holds."""
        self._end_wait()
        self._give_back()
        for release in self.releases:
            release()
        self.releases = []
        unpin(self.spans)
        self.spans = []

    def _take_memory(self) -> bool:
        """Reserve memory for what is to be read or copied. Return False if there is not enough:
        the request is planned again within the grant; without one it waits for memory."""
        memory = self.context.memory
        if self.copied_bytes <= self.granted:
            return True
        if self.granted:  # one batch is read whatever its size
            memory.add_bytes(self.copied_bytes - self.granted)
            self.granted = self.copied_bytes
            return True
        self.last = True
        self.granted = memory.reserve(self.copied_bytes)
        return self.granted == self.copied_bytes

    def _drop_copies(self) -> Generator[None, None, None]:
        """Leave only what can be sent from mapped journals, which is answered without the rest."""
        plans: Plans = []
        for each in self.plans:
            if isinstance(each[1], HotRead) and len(each[1].runs) < self.join_from:
                plans.append(each)
            yield
        self.plans, self.views = plans, []
        if plans:
            self.copied_bytes = 0

    def _wait_for_memory(self) -> None:
        context = self.context
        context.starved[self] = None
        context.memory.when_free(self.copied_bytes, self._have_memory)
        self.timer = context.env.call_later(MEMORY_PATIENCE_S, self.give_up)
        self.exchange.pins = self.give_up  # do not wait for a disconnected client

    def _stop_waiting(self) -> None:
        self.context.starved.pop(self, None)
        self.context.memory.cancel(self._have_memory)
        self._end_wait()

    def _have_memory(self, granted_bytes: int) -> None:
        self._stop_waiting()
        self.granted = granted_bytes
        if self.moved is not None:
            self.moved.set()
        else:
            self.context.budget.later(self._resume)

    def _resume(self) -> int:
        if self.exchange.peer.closed:
            self._give_back()
        else:
            self.try_answer()
        return self.cost

    def give_up(self) -> None:
        """Answer without records; the client retries."""
        self._stop_waiting()
        if self.moved is not None:
            self.moved.set()
        elif not self.exchange.peer.closed:
            self._answer_at_once()

    def _give_back(self, keep_bytes: int = 0) -> None:
        if self.granted > keep_bytes:
            self.context.memory.release(self.granted - keep_bytes)
            self.granted = keep_bytes

    def _begin_wait(self) -> bool:
        """Begin to wait for bytes, for as long as the client allows. Return False if too many
        requests wait: this one is answered with what there is, and the client retries."""
        context = self.context
        if len(context.parked) >= context.config.parked_fetches_max:
            return False
        context.parked[self] = None
        self.timer = context.env.call_later(self.ask.max_wait_ms / 1000, self.expire)
        # A disconnected client is not waited for.
        self.exchange.pins = self._unpark if self.moved is None else self.expire
        return True

    def _end_wait(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.context.parked.pop(self, None)

    def _watch(self) -> Generator[None, None, None]:
        """Have `wake` called by all partitions."""
        if self.session is not None:
            self.session.wait(self.wake)
            if self.session.due and self.moved is not None:  # meanwhile
                self.moved.set()
            return
        self.watched, self.partitions = self.partitions, []
        for partition in self.watched:
            partition.watch(self.wake)
            yield

    def _unwatch(self) -> Generator[None, None, None]:
        if self.session is not None:
            self.session.stop_waiting(self.wake)
        while self.watched:
            self.watched.pop().unwatch(self.wake)
            yield

    def _unpark(self) -> None:
        self.done = True
        self._end_wait()
        for _ in self._unwatch():
            pass

    def wake(self, _partition: Partition) -> None:
        """A partition has new records. Check at the end of the event-loop iteration, in which
        others may follow."""
        if self.moved is not None:
            self.moved.set()
        elif not self.woken:
            self.woken = True
            self.context.budget.later(self._scan)

    def _scan(self) -> int:
        self.woken = False
        if not self.done:
            if self.exchange.peer.closed:
                self._unpark()
            else:
                self.exchange.peer.at_once(self.try_answer)
        return self.cost

    def expire(self) -> None:
        """The client's maximum wait is over: answer with what there is."""
        self.last = True
        if self.moved is not None:
            self.moved.set()
        elif not self.done:
            self.try_answer()


def limit_size(peer: Peer, ask: FetchAsk) -> None:
    """Let a client with a quota ask for no more than it may get in a window, as in Kafka."""
    ask.max_bytes = peer.client_quotas().fetch_bytes_max(ask.max_bytes)
    ask.min_bytes = min(ask.min_bytes, ask.max_bytes)


class _ReleaseAll:
    """Calls every release, for a response that pins journals of several partitions."""

    __slots__ = ("releases",)

    def __init__(self, releases: list[Callable[[], None]]) -> None:
        self.releases = releases

    def __call__(self) -> None:
        for release in self.releases:
            release()
