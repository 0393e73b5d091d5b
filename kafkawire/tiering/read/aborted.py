"""Aborted transactions of segments in the remote tier, loaded for readers of committed records.

A segment's state has the aborted transactions that overlap it, so two small ranged requests to the
same object answer for all of its partitions: its end, with the section table, and its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    STATE,
    TAIL_BYTES,
    read_state,
    read_trailer,
    section_body,
)
from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.index_cache import (
    AbortedCache,
    DamagedSegment,
    SegmentAborted,
    has_transactions,
)
from kafkawire.log.segments.store.remote_tier import Taken
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import SegmentRange
from kafkawire.tiering.read.requests import Object, Requests, within


class AbortedLoads:
    """Loads what is not in the cache, once for all concurrent readers of a segment."""

    __slots__ = ("_cache", "_env", "_loading", "_troubled")

    def __init__(self, env: Env, cache: AbortedCache) -> None:
        self._env = env
        self._cache = cache
        self._loading: dict[int, asyncio.Task[SegmentAborted]] = {}
        self._troubled: dict[int, StoreError] = {}

    def want(self, segment_id: int, requests: Requests, target: Object) -> None:
        """Start to load a segment's, unless they are there or on their way."""
        if self._cache.find(segment_id) is None and segment_id not in self._loading:
            failing = partial(self._troubled.__setitem__, segment_id)
            task = self._env.spawn(load(requests, target, failing), "aborted transactions")
            self._loading[segment_id] = task
            task.add_done_callback(partial(self._on_loaded, segment_id))

    def _on_loaded(self, segment_id: int, task: asyncio.Task[SegmentAborted]) -> None:
        del self._loading[segment_id]
        self._troubled.pop(segment_id, None)
        # Not a damaged one: the next read loads it again.
        if not task.cancelled() and task.exception() is None and task.result().damaged is None:
            self._cache.keep(segment_id, task.result())

    async def add(
        self,
        taken: Taken,
        mapping: SegmentRange,
        offset: int,
        requests: Requests,
        target: Object,
        seconds: float | None,
    ) -> bool:
        """Add those that touch what was read from `offset` on; False if they were not loaded within
        `seconds`. StoreError if they cannot be, DamagedSegment if the state is damaged and there
        are transactions."""
        segment_id = mapping.segment_id
        known = self._cache.find(segment_id)
        if known is None:
            self.want(segment_id, requests, target)
            task = self._loading[segment_id]
            if not await within(task, seconds):
                trouble = self._troubled.get(segment_id)
                if trouble is not None:
                    raise trouble
                return False
            known = task.result()
        # Batches without transactions need no list, so that the damage does not affect them.
        if known.damaged is not None and has_transactions(taken.batches):
            raise DamagedSegment(offset, taken.next_offset, known.damaged)
        taken.aborted = known.overlapping(mapping.number, offset, taken.next_offset)
        return True


async def load(
    requests: Requests, target: Object, failing: Callable[[StoreError], None]
) -> SegmentAborted:
    """Read the aborted transactions of an object. StoreError if the store does not give it."""

    async def read(start: int, length: int) -> bytes:
        async def get() -> bytes:
            body, _ = await requests.store.get(target.key, start, length)
            if len(body) != length:
                raise StoreError("IncompleteRead", f"the state in {target.key} ended early")
            return body

        async def attempt() -> bytes:
            await requests.pay(length)
            return await requests.run_hedged(length, get, lambda: get)

        return await requests.persist(target, attempt, failing)

    async def decode() -> SegmentAborted:
        size = min(TAIL_BYTES, target.size_bytes)
        tail = await read(target.size_bytes - size, size)
        section = read_trailer(tail, target.size_bytes).optional(STATE)
        if section is None:
            return SegmentAborted({})
        body = section_body(section, await read(section.start, section.stop - section.start))
        states = read_state(body)
        return SegmentAborted({key: each.aborted for key, each in states.items() if each.aborted})

    try:
        try:
            return await decode()
        # Once more: the bytes may have been damaged in transit.
        except FormatError:
            return await decode()
    except FormatError as failure:
        return SegmentAborted({}, f"which transactions were aborted cannot be read: {failure}")
