"""The uploader: copies segments to objects, by the decisions of kafkawire.tiering.upload.scheduler.

The steps, between any two of which a crash may come: (1) The rows of objects are inserted as
COPY_STARTED, with a new uuid for each attempt. (2) The segment file is uploaded, byte for byte,
under that uuid. (3) One manifest delta is published for all objects uploaded meanwhile. (4) The
rows become COPY_FINISHED, with the commit offsets. (5) The state in memory, which readers and local
retention use, is updated. The objects of failed uploads, and of segments replaced meanwhile, become
DELETE_STARTED and are removed by kafkawire.tiering.retention.object_deletion.

Two tasks, one that admits and begins uploads and one that publishes finished ones, are woken by
events and by time. Failures do not end them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
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
from kafkawire.tiering.upload.candidates import UploadCandidates, can_upload, inherit
from kafkawire.tiering.upload.finisher import Finisher, Flight
from kafkawire.tiering.upload.offsets import UploadProgress
from kafkawire.tiering.upload.scheduler import Candidate, Dispatcher, Fault

logger = logging.getLogger(__name__)

MAPPINGS_AT_ONCE = 20_000
"""Mappings per transaction and delta: a segment may have ten thousand."""
REGISTERED_AT_ONCE = 100
"""Segments registered between two failures after which all are checked again."""
CAUGHT_UP_EVERY_S = 600.0
MAX_NAMED = 5
"""Maximum number of problems logged for a damaged file."""
MAX_SCAN_S = 10.0
"""Maximum time between two checks: settings or the wall clock may have changed."""


def fault_of(failure: BaseException) -> Fault:
    """Return which uploads must wait after this failure."""
    if isinstance(failure, Refused):
        return Fault.REFUSED
    if isinstance(failure, SlowDown):
        return Fault.SLOW_DOWN
    return Fault.STORE if isinstance(failure, StoreError) else Fault.FILE


class Uploader:
    """Uploads segments. `noted`: segments to be checked; `uploads`, `uploaded_bytes`: finished
    since the start; `refusal`: the first failure since an upload succeeded that an operator must
    correct."""

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
        self.refusal: Refused | None = None
        self._wake = asyncio.Event()
        self._publish = asyncio.Event()
        self._uploads: dict[asyncio.Task[Any], None] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        self.note_all()
        self._tasks = [
            self._env.spawn(self._repeat("uploading", self._scan, self._wake), "upload"),
            self._env.spawn(self._repeat("publishing", self._round, self._publish), "publish"),
        ]

    async def close(self) -> None:
        """Stop; uploads in progress are cancelled and cleaned up by the next start."""
        tasks = [*self._tasks, *self._uploads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Also those whose upload had not begun.
        for flight in self._flights.values():
            flight.unpin()

    def note_segments(self, ids: Collection[int]) -> None:
        self.noted.update(ids)
        self._wake.set()

    def note_all(self) -> None:
        """Check every segment without an object, because settings have changed."""
        self._all = True
        self._wake.set()

    def upload_soon(self, numbers: Set[int]) -> None:
        """Upload what these partitions have in segments as soon as possible. Segments that are
        registered later need another call."""
        self.dispatcher.upload_soon(numbers, self._now())
        self._finisher.publish_soon()
        self.wake()

    def wake(self) -> None:
        self._wake.set()
        self._publish.set()

    async def _repeat(
        self, what: str, work: Callable[[], Awaitable[float]], event: asyncio.Event
    ) -> None:
        """Call `work` whenever `event` is set, or after the delay that it last returned."""
        failures = 0
        while True:
            event.clear()
            try:
                pause_s = await work()
                failures = 0
            except Exception as failure:  # retried; ERROR is for exceeded lag limits
                failures += 1
                pause_s = wait_s(failures, self.dispatcher.limits.retry_max_s, self._jitter())
                self._warnings.warn(what, failure)
                await self._env.sleep(pause_s)
                continue
            timer = self._env.call_later(pause_s, event.set)
            await event.wait()
            timer.cancel()

    async def _scan(self) -> float:
        """Register, admit and begin uploads; return the seconds until the next check."""
        await self._drop_garbage()
        await self._register()
        now = self._now()
        admitted = self.dispatcher.admit_uploads(now)
        if admitted:
            await self._admit(admitted)
        for segment_id in self.dispatcher.start_uploads(self._now()):
            task = self._env.spawn(self._upload(self._flights[segment_id]), "upload a segment")
            self._uploads[task] = None
            task.add_done_callback(self._uploads.pop)
        now = self._now()
        return min(MAX_SCAN_S, max(0.0, self.dispatcher.wake_at(now) - now))

    async def _register(self) -> None:
        """Register the noted segments; those deleted or not tiered any more are removed."""
        if self._all:
            self._all = False
            rows = [segment.row for segment in self._segments.by_id.values()]
            self.noted.update(row.id for row in rows if can_upload(row))
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
            self.dispatcher.remove_segment(segment_id)
            if candidate is not None:
                inherit(candidate, exchanged if before is None else [before])
                self.dispatcher.register(candidate, self._now())

    def _is_wanted(self, segment_id: int) -> bool:
        segment = self._segments.by_id.get(segment_id)
        return segment is not None and can_upload(segment.row)

    async def _admit(self, ids: Sequence[int]) -> None:
        """Insert the rows of admitted segments; after a failure they are registered again."""
        left = list(ids)
        try:
            while left:
                room = MAPPINGS_AT_ONCE
                part: list[int] = []
                while left and (not part or room >= len(self._numbers(left[0]))):
                    room -= len(self._numbers(left[0]))
                    part.append(left.pop(0))
                await self._start(part)
        # Not after a cancellation, when the broker stops.
        except Exception as failure:
            for segment_id in ids:
                if segment_id not in self._flights and segment_id in self.dispatcher.candidates:
                    self._handle_failure(segment_id, failure)
            raise

    def _numbers(self, segment_id: int) -> Sequence[int]:
        return self.dispatcher.candidates[segment_id].numbers

    async def _start(self, ids: Sequence[int]) -> None:
        """Insert rows COPY_STARTED and raise dispatch offsets in one transaction."""
        flights = await self._new_flights(ids)
        # Those below, which are not in SQL yet, those in progress and those finished: dispatch
        # offsets rise in the transaction that inserts the rows.
        started = {flight.id for flight in flights}
        numbers = [number for segment_id in ids for number in self._numbers(segment_id)]
        dispatched = await self._progress.find_dispatch_offsets(
            numbers,
            lambda each: each in started or each in self._flights or self._finisher.has(each),
        )
        entered = await self._enter([flight.row for flight in flights], dispatched)
        self._progress.raise_dispatch(dispatched)
        for flight in flights:
            # Until the upload ends: a merge may replace the segment meanwhile and remove its file.
            if flight.row.uuid in entered:
                flight.pin()
                self._flights[flight.id] = flight
        for segment_id in ids:
            # It was replaced meanwhile.
            if segment_id not in self._flights:
                self.dispatcher.finish(segment_id)

    async def _enter(self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]) -> set[bytes]:
        if not rows:
            return set()
        try:
            return set(await self._storage.start_objects(rows, dispatched))
        # The transaction may have succeeded nevertheless.
        except BaseException:
            self._garbage += [row.uuid for row in rows]
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
            if segment is not None and can_upload(segment.row) and segment_id in ranges:
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
        """Log damage in a file before it is uploaded. Raises OSError, WorkerError."""
        # It is uploaded nevertheless, which preserves the other batches; readers of the damaged
        # ones get an error.
        arguments = ScrubArguments(flight.segment.path, flight.segment.row.uuid)
        result: ScrubResult = await self._env.worker.run("check", arguments, rate)
        for problem in result.problems[:MAX_NAMED]:
            logger.critical(
                "%s. The segment is uploaded with the damage; `kafkawire tier scrub --deep` lists "
                "all damage in the remote tier",
                problem,
            )

    async def _upload(self, flight: Flight) -> None:
        key = segment_key(flight.row.uuid)
        try:
            rate = self.dispatcher.limits.bytes_per_second
            await self._check(flight, rate)
            with charging(flight.bytes_by_topic):
                stored = await self._store.upload(key, flight.segment.path, rate)
            if stored.size_bytes != flight.row.size_bytes:
                text = f"{stored.size_bytes} of {flight.row.size_bytes} bytes arrived"
                raise StoreError("Truncated", text)
        # Also a defect, which is logged before the retry. The object may have been stored; the next
        # attempt has another uuid, so a late PUT cannot change what it uploads.
        except Exception as failure:
            self._garbage.append(flight.row.uuid)
            del self._flights[flight.id]
            self._handle_failure(flight.id, failure)
        else:
            self.refusal = None
            self.dispatcher.note_upload()
            self._uploaded.append(flight)
            self._publish.set()
        finally:
            flight.unpin()
            self._wake.set()

    def _handle_failure(self, segment_id: int, failure: BaseException) -> None:
        fault, now = fault_of(failure), self._now()
        error = failure.code if isinstance(failure, StoreError) else type(failure).__name__
        self.dispatcher.fail(segment_id, fault, error, now, self._jitter())
        if isinstance(failure, Refused):
            self._refuse(failure)
        self._warnings.warn("an upload", failure)
        if segment_id not in self._segments.by_id:
            self.dispatcher.remove_segment(segment_id)

    def _refuse(self, failure: Refused) -> None:
        """Log an error that needs an operator once, as an ERROR, until an upload succeeds."""
        # The manifest has logged that another broker owns the bucket.
        if self.refusal is None and failure.code != "OwnedByOther":
            self.refusal = failure
            logger.error(
                "the remote tier refuses uploads, records stay on the disk of this broker: %s",
                failure,
            )

    async def _drop_garbage(self) -> None:
        """Delete objects of failed attempts that were never in a manifest."""
        # A copy, which is removed after the call: others may be added while it waits, or it fails.
        if garbage := self._garbage[:]:
            await self._storage.delete_objects(garbage, 0)
            del self._garbage[: len(garbage)]
            self._discarded()

    async def _round(self) -> float:
        """Publish and finish uploaded objects; return the seconds until the next check."""
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
        """At the start and periodically, raise commit offsets that are too low."""
        now, dispatcher = self._now(), self.dispatcher
        if now >= self._catch_up_at and not dispatcher.detached and not dispatcher.foreign:
            await self._finisher.catch_up_all()
            self._catch_up_at = now + CAUGHT_UP_EVERY_S

    def _hold(self, failure: StoreError) -> None:
        """Block new uploads for a while, because the manifest cannot be written."""
        fault, now = fault_of(failure), self._now()
        self.dispatcher.close_gate(fault, failure.code, now, self._jitter())
        self.dispatcher.failures[fault] += 1
        if isinstance(failure, Refused):
            self._refuse(failure)

    def _now(self) -> float:
        return self._env.clock.monotonic()

    def _jitter(self) -> float:
        return self._env.random.random()
