"""The rewriter: merges small segments and drops dead ranges, one job of the worker at a time.

As the cutter: STARTED row -> file -> one transaction that exchanges the mappings -> memory -> the
inputs go after the grace. If what was planned on has changed meanwhile, nothing is exchanged and
the output is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping as Map

from kafkawire.codec.configs import BrokerConfig
from log.env import Env, FileSystem
from log.partition import Partition
from log.segments.fetching import Fetcher
from log.segments.jobs import Input, JobResult, Keep, Output, RewriteArguments, pack
from log.segments.origin import Origins
from log.segments.outcome import mappings_of
from log.segments.rewriteplan import (
    MERGED_MAPPINGS,
    Rewrite,
    is_half_dead,
    mergeable,
    plan_rewrite,
    too_many,
)
from log.segments.store import Segment, SegmentStore, payload_bytes
from log.segments.swap import Swapper
from offsets.storage import LIVE, Mapping, OffsetStorage, SegmentRow, StaleSwap

logger = logging.getLogger(__name__)

SURVEYED_AT_ONCE = 100
"""Segments of earlier starts whose trailers are read between two turns: a few milliseconds."""
KEEPS_AT_ONCE = 256
RESTED_S = 600.0
"""A segment that could not be rewritten is left alone for so long."""


class Rewriter:
    """See the module."""

    __slots__ = (
        "_config",
        "_deadlines",
        "_env",
        "_many",
        "_node_id",
        "_origins",
        "_partitions",
        "_resting",
        "_storage",
        "_store",
        "_swapper",
        "fetcher",
    )

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        partitions: Map[int, Partition],
        storage: OffsetStorage,
        store: SegmentStore,
        swapper: Swapper,
        node_id: int,
        origins: Origins,
    ) -> None:
        self._env = env
        self._config = config
        self._partitions = partitions
        self._storage = storage
        self._store = store
        self._swapper = swapper
        self._node_id = node_id
        self._origins = origins
        self._many: set[int] = set()
        self.fetcher = Fetcher(env, store)
        self._resting: dict[int, float] = {}
        self._deadlines: dict[int, float] = {}  # segment -> when (monotonic) dead bytes must go

    def note(self, numbers: set[int]) -> None:
        """These partitions have got further segments."""
        self._many |= {
            number
            for number in numbers
            if (partition := self._partitions.get(number)) and too_many(partition.segments)
        }

    async def run(self) -> bool:
        """Do what is most urgent; whether there was anything."""
        inputs = self._choose()
        if not inputs:
            return False
        rewrite = await self._plan(inputs)
        first = self._store.by_id[inputs[0].id]
        if not first.row.local and not self._fetch(first, rewrite):
            return True
        try:
            await self._rewrite(rewrite)
        except StaleSwap:
            logger.info("segments changed while they were rewritten: planned anew later")
        except Exception:
            self._rest(inputs)
            raise
        finally:
            self.fetcher.release(first)
        return True

    def _fetch(self, segment: Segment, rewrite: Rewrite) -> bool:
        """Whether a remote segment is here. It is fetched only if what is made of it is uploaded
        in its place: else the local disk would get what had left it."""
        localizer = self._store.localizer
        if localizer is None or not localizer.copies(rewrite.parts):
            self._rest(rewrite.inputs)
            return False
        return self.fetcher.fetch(segment)

    async def _plan(self, inputs: list[SegmentRow]) -> Rewrite:
        """As many of the inputs as fit into one job, from the first on."""
        mappings: list[Mapping] = []
        for at, row in enumerate(inputs):
            if at > 1 and len(mappings) >= MERGED_MAPPINGS:
                del inputs[at:]
                break
            mappings += await self._storage.segment_mappings([row.id])
        for rewrite in plan_rewrite(inputs, mappings):
            if rewrite is not None:
                return rewrite
            await self._env.sleep(0)
        raise AssertionError("the last step is the plan")

    def _choose(self) -> list[SegmentRow]:
        """The segments of the next rewrite, in order; none if there is nothing to do. One that is
        not local comes alone: nothing is downloaded only to be merged."""
        now = self._env.clock.monotonic()
        self._resting.update(dict.fromkeys(self.fetcher.tidy(), now + RESTED_S))
        self._resting = {at: until for at, until in self._resting.items() if until > now}
        for segment in self._store.by_id.values():
            row = segment.row
            if row.id in self._resting or row.state != LIVE or not row.live_bytes:
                continue
            if not row.local and not self.fetcher.takes(segment):
                continue
            due = self._deadlines.get(row.id)
            if (due is not None and due <= now) or is_half_dead(row, segment.payload_bytes):
                return [row]
        by_id = {
            segment_id: segment.row
            for segment_id, segment in self._store.by_id.items()
            if segment_id not in self._resting and segment.row.local
        }
        while self._many:
            partition = self._partitions.get(self._many.pop())
            if partition is not None and too_many(partition.segments):
                found = mergeable(partition.segments, by_id)
                if found:
                    return [by_id[segment_id] for segment_id in found]
        return []

    def _rest(self, inputs: list[SegmentRow]) -> None:
        until = self._env.clock.monotonic() + RESTED_S
        self._resting.update({row.id: until for row in inputs})

    async def _rewrite(self, rewrite: Rewrite) -> None:
        newest = max(row.generation for row in rewrite.inputs)
        row = SegmentRow(
            self._env.random.randbytes(16),
            self._node_id,
            self._env.clock.now_ms(),
            generation=newest + 1,
            retention_class=rewrite.inputs[0].retention_class,
        )
        (row.id,) = await self._storage.start_segments([row])
        output = Segment(row, self._store.folder)
        pinned = [self._store.by_id[each.id] for each in rewrite.inputs]
        for segment in pinned:
            segment.pins += 1
        try:
            arguments = RewriteArguments(
                self._node_id,
                row.created_ms,
                await self._inputs(rewrite),
                Output(output.path, row.uuid, [], row.generation, row.retention_class),
                await self._origins.of(rewrite.parts),
            )
            result: JobResult = await self._env.worker.run(
                "rewrite", arguments, self._config.worker_bytes_per_second
            )
            finished, left_out = await self._outcome(result, row, rewrite)
            if finished:
                await self._swapper.replace(finished, rewrite.removed(left_out))
        except Exception:
            if not self._swapper.in_doubt(row):
                await self._store.discard([output])
            raise
        finally:
            for segment in pinned:
                segment.pins -= 1
        if left_out:
            self._rest(rewrite.inputs)
        if not finished:
            await self._store.discard([output])
        logger.info("rewrote %d segments into segment %s", len(pinned), output.name)

    async def _inputs(self, rewrite: Rewrite) -> list[Input]:
        keeps: dict[int, list[Keep]] = {row.id: [] for row in rewrite.inputs}
        for at, mapping in enumerate(rewrite.removed()):
            partition = self._partitions.get(mapping.number)
            start = mapping.base_offset if partition is None else partition.log_start
            keeps[mapping.segment_id].append(
                Keep(mapping.number, mapping.base_offset, mapping.end_offset, start)
            )
            if at % KEEPS_AT_ONCE == KEEPS_AT_ONCE - 1:
                await self._env.sleep(0)
        inputs = []
        for row in rewrite.inputs:
            packed: list[bytes] = []
            for at in range(0, len(keeps[row.id]), KEEPS_AT_ONCE):
                packed += pack(keeps[row.id][at : at + KEEPS_AT_ONCE])
                await self._env.sleep(0)
            if packed:
                inputs.append(Input(Segment(row, self._store.folder).path, row.uuid, packed))
        return inputs

    async def _outcome(
        self, result: JobResult, row: SegmentRow, rewrite: Rewrite
    ) -> tuple[list[tuple[SegmentRow, list[Mapping]]], list[int]]:
        """What was written, and the partitions that were left out because they are damaged."""
        for damage in result.damaged:
            logger.critical(
                "partition %d cannot be rewritten: %s, at %d of %s",
                damage.number,
                damage.text,
                damage.position,
                damage.path,
            )
        left_out = [damage.number for damage in result.damaged]
        (made,) = result.made
        if not made.size_bytes:
            return [], left_out
        mappings = await mappings_of(self._env, made, row, {})
        dues = {
            number: min(mapping.due_ms for mapping in part)
            for number, part in rewrite.parts.items()
        }
        mappings = [mapping._replace(due_ms=dues[mapping.number]) for mapping in mappings]
        return [(row, mappings)], left_out

    async def survey(self, dead_max_s: float) -> None:
        """Give segments with dead bytes a deadline: these may be a deleted topic's.

        How much was once written to those of earlier starts is learned from their trailers.
        """
        living = [item for item in self._store.by_id.values() if item.row.state == LIVE]
        unknown = [item for item in living if item.payload_bytes < 0]
        self.fetcher.learn(item for item in unknown if not item.row.local)
        unknown = [item for item in unknown if item.row.local][:SURVEYED_AT_ONCE]
        if unknown:
            paths = [segment.path for segment in unknown]
            sizes = await self._env.offload.submit("files", payloads, self._env.fs, paths)
            for segment, size in zip(unknown, sizes, strict=True):
                segment.payload_bytes = size
        now = self._env.clock.monotonic()
        deadlines = {}
        for segment in living:
            row = segment.row
            if row.live_bytes < segment.payload_bytes:
                deadlines[row.id] = self._deadlines.get(row.id, now + dead_max_s)
        self._deadlines = deadlines


def payloads(fs: FileSystem, paths: list[str]) -> list[int]:
    """The bytes of batches in each segment; 0 where that cannot be read. Runs in a thread."""
    return [payload_bytes(fs, path) for path in paths]
