"""The uploader: segments become objects, by the decisions of kafkawire.tiering.upload.scheduler.

In order, and a crash may come between any two: rows of objects that are COPY_STARTED, with a new
uuid for each try -> the segment file, byte for byte, under that uuid -> the manifest's delta, one
for all that have been uploaded meanwhile -> rows COPY_FINISHED with the commit offsets -> memory,
where readers and local retention see it. What failed, or whose segment was exchanged meanwhile,
becomes DELETE_STARTED and is removed by kafkawire.tiering.retention.object_deletion.

Two tasks: one admits and begins uploads, the other publishes those that are done; both are woken by
what happens and by time. No failure ends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import ScrubArguments, ScrubResult
from kafkawire.log.segments.store.segment_store import SegmentStore
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import Refused, SlowDown, StoreError
from kafkawire.offsets.catalog.port import (
    COPY_STARTED,
    ObjectRow,
    SegmentCatalog,
    SegmentRow,
    pack_ranges,
)
from kafkawire.tiering.store.metering import charging
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.warnings import Warnings
from kafkawire.tiering.upload.candidates import UploadCandidates, inherit, wanted
from kafkawire.tiering.upload.finisher import Finisher, Flight
from kafkawire.tiering.upload.offsets import UploadProgress
from kafkawire.tiering.upload.scheduler import Candidate, Dispatcher, Fault

logger = logging.getLogger(__name__)

MAPPINGS_AT_ONCE = 20_000
"""Mappings of one transaction and one delta: a segment may have ten thousand."""
REGISTERED_AT_ONCE = 100
"""Segments checked between two failures after which all of them are checked again."""
CAUGHT_UP_EVERY_S = 600.0
MAX_NAMED = 5
"""Problems logged for a damaged file."""
MAX_SCAN_S = 10.0
"""The longest between two checks: settings may have changed, and clocks been set."""


def fault_of(failure: BaseException) -> Fault:
    """Who has to wait after this."""
    if isinstance(failure, Refused):
        return Fault.REFUSED
    if isinstance(failure, SlowDown):
        return Fault.SLOW_DOWN
    return Fault.STORE if isinstance(failure, StoreError) else Fault.FILE


class Uploader:
    """Uploads segments. `noted`: segments to be checked; `uploads`, `uploaded_bytes` count what
    was finished since the start."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        segments: SegmentStore,
        store: ObjectStore,
        dispatcher: Dispatcher,
        candidates: UploadCandidates,
        progress: UploadProgress,
        finisher: Finisher,
        topic_of: Callable[[int], str],
        discarded: Callable[[], None],
        node_id: int,
        tier: int,
    ) -> None:
        self._env = env
        self._storage = storage
        self._segments = segments
        self._store = store
        self._candidates = candidates
        self._progress = progress
        self._node_id = node_id
        self._finisher = finisher
        self.dispatcher = dispatcher
        self._topic_of = topic_of
        self._discarded = discarded
        self._tier = tier
        self.noted: set[int] = set()
        self._all = False
        self._catch_up_at = 0.0
        self.uploads = 0
        self.uploaded_bytes = 0
        self._flights: dict[int, Flight] = {}
        self._uploaded: list[Flight] = []
        self._garbage: list[bytes] = []
        self._warnings = Warnings(env, logger)
        self._refused = False
        self._wake = asyncio.Event()
        self._publish = asyncio.Event()
        self._uploads: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[Any]] = []

    # --- from outside

    def start(self) -> None:
        """Begin with every segment there is."""
        self.note_all()
        self._tasks = [
            self._env.spawn(self._repeat("uploading", self._scan, self._wake), "upload"),
            self._env.spawn(self._repeat("publishing", self._round, self._publish), "publish"),
        ]

    async def close(self) -> None:
        """End; what is on its way is given up, and cleaned up by the next start."""
        tasks = [*self._tasks, *self._uploads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for flight in self._flights.values():  # those whose upload had not begun, too
            flight.unpin()

    def note(self, ids: Collection[int]) -> None:
        """These segments are new, or not what they were."""
        self.noted.update(ids)
        self._wake.set()

    def note_all(self) -> None:
        """Settings have changed: check every segment that has no object."""
        self._all = True
        self._wake.set()

    def wake(self) -> None:
        """Decide again: something about the dispatcher was changed."""
        self._wake.set()
        self._publish.set()

    # --- tasks

    async def _repeat(
        self, what: str, work: Callable[[], Awaitable[float]], event: asyncio.Event
    ) -> None:
        """Do `work` whenever `event` is set or the time has come that it gave last."""
        failures = 0
        while True:
            event.clear()
            try:
                pause_s = await work()
                failures = 0
            except Exception as failure:  # tried again; ERROR is for promises that are missed
                failures += 1
                pause_s = wait_s(failures, self.dispatcher.limits.retry_max_s, self._jitter())
                self._warnings.warn(what, failure)
                await self._env.sleep(pause_s)
                continue
            timer = self._env.call_later(pause_s, event.set)
            await event.wait()
            timer.cancel()

    async def _scan(self) -> float:
        """Register, admit, begin; seconds until the next check."""
        await self._drop_garbage()
        await self._register()
        now = self._now()
        admitted = self.dispatcher.admit(now)
        if admitted:
            await self._admit(admitted)
        for segment_id in self.dispatcher.begin(self._now()):
            task = self._env.spawn(self._upload(self._flights[segment_id]), "upload a segment")
            self._uploads.add(task)
            task.add_done_callback(self._uploads.discard)
        now = self._now()
        return min(MAX_SCAN_S, max(0.0, self.dispatcher.wake_at(now) - now))

    async def _register(self) -> None:
        """Take in what was noted; what is gone, or not to be tiered any more, is dropped."""
        if self._all:
            self._all = False
            rows = [segment.row for segment in self._segments.by_id.values()]
            self.noted.update(row.id for row in rows if wanted(row))
        if not self.noted:
            return
        batch, self.noted = sorted(self.noted), set()
        known = self.dispatcher.candidates
        exchanged = [known[each] for each in batch if each in known and not self._is_wanted(each)]
        try:
            while batch:
                await self._register_some(batch[:REGISTERED_AT_ONCE], exchanged)
                del batch[:REGISTERED_AT_ONCE]
        except BaseException:
            self.noted.update(batch)
            raise

    async def _register_some(self, ids: Sequence[int], exchanged: Sequence[Candidate]) -> None:
        found = {each.segment_id: each for each in await self._candidates.candidates(ids)}
        for segment_id in ids:
            candidate = found.get(segment_id)
            before = self.dispatcher.candidates.get(segment_id)
            self.dispatcher.forget(segment_id)
            if candidate is not None:
                inherit(candidate, exchanged if before is None else [before])
                self.dispatcher.register(candidate, self._now())

    def _is_wanted(self, segment_id: int) -> bool:
        segment = self._segments.by_id.get(segment_id)
        return segment is not None and wanted(segment.row)

    async def _admit(self, ids: Sequence[int]) -> None:
        """Give segments their rows; if that fails they are registered again."""
        left = list(ids)
        try:
            while left:
                room = MAPPINGS_AT_ONCE
                part: list[int] = []
                while left and (not part or room >= len(self._numbers(left[0]))):
                    room -= len(self._numbers(left[0]))
                    part.append(left.pop(0))
                await self._start(part)
        except Exception as failure:  # not a cancellation: the broker stops, nothing is tried again
            for segment_id in ids:
                if segment_id not in self._flights and segment_id in self.dispatcher.candidates:
                    self._failed(segment_id, failure)
            raise

    def _numbers(self, segment_id: int) -> Sequence[int]:
        return self.dispatcher.candidates[segment_id].numbers

    async def _start(self, ids: Sequence[int]) -> None:
        """One transaction: rows of objects that are COPY_STARTED, and dispatch offsets."""
        flights = await self._new_flights(ids)
        started = {flight.id for flight in flights}
        numbers = [number for segment_id in ids for number in self._numbers(segment_id)]
        dispatched = await self._progress.dispatched(
            numbers,
            lambda each: each in started or each in self._flights or self._finisher.has(each),
        )
        entered = await self._enter([flight.row for flight in flights], dispatched)
        self._progress.raise_dispatch(dispatched)
        for flight in flights:
            if flight.row.uuid in entered:
                flight.pin()
                self._flights[flight.id] = flight
        for segment_id in ids:
            if segment_id not in self._flights:  # it was exchanged meanwhile
                self.dispatcher.finish(segment_id)

    async def _enter(self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]) -> set[bytes]:
        if not rows:
            return set()
        try:
            return set(await self._storage.start_objects(rows, dispatched))
        except BaseException:
            self._garbage += [row.uuid for row in rows]  # it may have been done all the same
            raise

    async def _new_flights(self, ids: Sequence[int]) -> list[Flight]:
        ranges: dict[int, list[tuple[int, int, int]]] = {}
        sizes: dict[int, dict[str, int]] = {}
        for each in await self._storage.segment_mappings(ids):
            some = ranges.setdefault(each.segment_id, [])
            some.append((each.number, each.base_offset, each.end_offset))
            by_topic = sizes.setdefault(each.segment_id, {})
            topic = self._topic_of(each.number)
            by_topic[topic] = by_topic.get(topic, 0) + each.length
        flights = []
        for segment_id in ids:
            segment = self._segments.by_id.get(segment_id)
            if segment is not None and wanted(segment.row) and segment_id in ranges:
                row = self._row(segment.row, ranges[segment_id])
                candidate = self.dispatcher.candidates[segment_id]
                flights.append(Flight(segment, row, candidate, sizes[segment_id]))
        return flights

    def _row(self, segment: SegmentRow, ranges: list[tuple[int, int, int]]) -> ObjectRow:
        return ObjectRow(
            uuid=self._env.random.randbytes(16),
            segment_id=segment.id,
            node_id=self._node_id,
            tier=self._tier,
            state=COPY_STARTED,
            size_bytes=segment.size_bytes,
            created_ms=self._env.clock.now_ms(),
            ranges=pack_ranges(ranges),
        )

    async def _check(self, flight: Flight, rate: int) -> None:
        """Log what is damaged in a file before it is copied. It is uploaded all the same: the other
        batches are safe then; readers of the damaged ones get an error. OSError, WorkerError."""
        arguments = ScrubArguments(flight.segment.path, flight.segment.row.uuid)
        result: ScrubResult = await self._env.worker.run("check", arguments, rate)
        for problem in result.problems[:MAX_NAMED]:
            logger.critical(
                "%s. The segment is uploaded with the damage; `kafkawire tier scrub --deep` lists "
                "all damage in the remote tier",
                problem,
            )

    async def _upload(self, flight: Flight) -> None:
        """One try. Not raised: a failure is taken to the dispatcher."""
        key = segment_key(flight.row.uuid)
        try:
            rate = self.dispatcher.limits.bytes_per_second
            await self._check(flight, rate)
            with charging(flight.bytes_by_topic):
                stored = await self._store.upload(key, flight.segment.path, rate)
            if stored.size_bytes != flight.row.size_bytes:
                text = f"{stored.size_bytes} of {flight.row.size_bytes} bytes arrived"
                raise StoreError("Truncated", text)
        except Exception as failure:  # also a defect: the segment is tried again, and it is logged
            self._garbage.append(flight.row.uuid)
            del self._flights[flight.id]
            self._failed(flight.id, failure)
        else:
            self._refused = False
            self.dispatcher.uploaded()
            self._uploaded.append(flight)
            self._publish.set()
        finally:
            flight.unpin()
            self._wake.set()

    def _failed(self, segment_id: int, failure: BaseException) -> None:
        """A try failed: WARN, and later again."""
        fault, now = fault_of(failure), self._now()
        error = failure.code if isinstance(failure, StoreError) else type(failure).__name__
        self.dispatcher.fail(segment_id, fault, error, now, self._jitter())
        if isinstance(failure, Refused):
            self._refuse(failure)
        self._warnings.warn("an upload", failure)
        if segment_id not in self._segments.by_id:
            self.dispatcher.forget(segment_id)

    def _refuse(self, failure: Refused) -> None:
        """Log an error that needs an operator at ERROR, once until an upload succeeds."""
        if not self._refused:
            self._refused = True
            logger.error(
                "the remote tier refuses uploads, local reads and writes are served: %s", failure
            )

    async def _drop_garbage(self) -> None:
        """Objects of tries that failed, none of which was ever in a manifest."""
        if garbage := self._garbage[:]:
            await self._storage.delete_objects(garbage, 0)
            del self._garbage[: len(garbage)]
            self._discarded()

    # --- publishing

    async def _round(self) -> float:
        """Publish what is uploaded, then finish it; seconds until the next check."""
        await self._catch_up()
        while self._uploaded and not self.dispatcher.foreign:
            room = MAPPINGS_AT_ONCE
            part: list[Flight] = []
            for flight in self._uploaded:
                room -= len(flight.candidate.numbers)
                if part and room < 0:
                    break
                part.append(flight)
            try:
                self._garbage += await self._finisher.finish(part)
            except StoreError as failure:
                self._hold(failure)
                raise
            del self._uploaded[: len(part)]
            for flight in part:
                del self._flights[flight.id]
                self.dispatcher.finish(flight.id)
                self.uploads += 1
                self.uploaded_bytes += flight.row.size_bytes
            self.dispatcher.open_gate()
            self._wake.set()
        return MAX_SCAN_S

    async def _catch_up(self) -> None:
        """At the start and periodically: commit offsets that lie after what is finished."""
        now, dispatcher = self._now(), self.dispatcher
        if now >= self._catch_up_at and not dispatcher.detached and not dispatcher.foreign:
            await self._finisher.catch_up_all()
            self._catch_up_at = now + CAUGHT_UP_EVERY_S

    def _hold(self, failure: StoreError) -> None:
        """The manifest cannot be written: no further upload begins for a while."""
        fault, now = fault_of(failure), self._now()
        self.dispatcher.close_gate(fault, failure.code, now, self._jitter())
        self.dispatcher.failures[fault] += 1
        if isinstance(failure, Refused):
            self._refuse(failure)

    def _now(self) -> float:
        return self._env.clock.monotonic()

    def _jitter(self) -> float:
        return self._env.random.random()
