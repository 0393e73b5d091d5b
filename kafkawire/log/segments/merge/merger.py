"""The merger: merges small segments and removes dead ranges, one job of the worker at a time.

As in the cutter: STARTED row -> file -> one transaction that replaces the mappings -> memory -> the
inputs are deleted after their delay. If the planned rows have changed meanwhile, nothing is
replaced and the output is discarded. Inputs that are only in the remote tier are fetched first
(kafkawire.log.segments.merge.fetch_remote); meanwhile local ones are merged. When nothing else is
due, segments of decommissioned brokers are copied in the same way
(kafkawire.log.segments.merge.decommissioned).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.io.worker_jobs import (
    Input,
    JobResult,
    Keep,
    RewriteArguments,
    SegmentOutput,
    pack,
)
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.merge.decommissioned import DecommissionedSegments
from kafkawire.log.segments.merge.fetch_remote import Fetcher
from kafkawire.log.segments.merge.plan import (
    MAX_MAPPINGS,
    SPANS,
    MergeCandidate,
    Rewrite,
    is_half_dead,
    limits_of,
    max_small,
    next_merge,
    no_limit,
    plan_rewrite,
)
from kafkawire.log.segments.store.remote_tier import RemoteTier
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore, payload_bytes
from kafkawire.log.segments.store.swap import Swapper, mappings_of
from kafkawire.offsets.catalog.port import LIVE, SegmentCatalog, SegmentRange, SegmentRow, StaleSwap
from kafkawire.plural import count

logger = logging.getLogger(__name__)

SURVEYED_AT_ONCE = 100
"""Segments of earlier starts whose trailers are read at once: a few milliseconds."""
KEEPS_AT_ONCE = 256
SLICE = 500
"""Segments checked between two iterations of the event loop: a millisecond."""
MAX_PLANNED = 2000
"""Small segments of a class, the oldest, that are planned at a time: a millisecond. There are more
only after a time without merges."""
FETCH_WAIT_S = 2.0
"""How long to wait for downloads: most files are still local, or small."""
RESTED_S = 600.0
"""Seconds until a segment that could not be merged is tried again."""
COPY_RETRY_S = 60.0
"""The same for one of a decommissioned broker: its removal waits for it, and most outages of the
remote tier are shorter."""
MAX_REFUSED = 20
"""Merges that do not pay and are skipped at a time: planning one takes a millisecond."""
MIN_PIECE_BYTES = 1 << 20
"""Least size of a part of `retention.bytes`."""


class Rewriter:
    """Merges small segments and removes dead ranges. `config_of` returns the settings of a
    partition, None: its topic is deleted; `led_elsewhere`: whether another broker leads it, which
    alone changes its mappings, so they stay where they are; `decommissioned` returns the brokers
    whose segments are to be copied. Counters: `merges`, and `merged_bytes`
    of batches that these wrote again."""

    __slots__ = (
        "_config",
        "_config_of",
        "_deadlines",
        "_decommissioned",
        "_env",
        "_fetched",
        "_led_elsewhere",
        "_node_id",
        "_origins",
        "_partitions",
        "_remote",
        "_resting",
        "_storage",
        "_store",
        "_swapper",
        "fetcher",
        "merged_bytes",
        "merges",
    )

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        partitions: Mapping[int, Partition],
        storage: SegmentCatalog,
        store: SegmentStore,
        remote: RemoteTier,
        swapper: Swapper,
        node_id: int,
        origins: Origins,
        config_of: Callable[[int], TopicConfig | None],
        led_elsewhere: Callable[[int], bool],
        decommissioned: Callable[[], Collection[int]],
    ) -> None:
        self._decommissioned = DecommissionedSegments(
            env, storage, store, decommissioned, config_of
        )
        self._led_elsewhere = led_elsewhere
        self._env = env
        self._config = config
        self._partitions = partitions
        self._storage = storage
        self._store = store
        self._remote = remote
        self._swapper = swapper
        self._node_id = node_id
        self._origins = origins
        self._config_of = config_of
        self.fetcher = Fetcher(env, remote)
        self._fetched: Rewrite | None = None  # its inputs are being fetched, or are local
        # Until when segments that could not be merged are left alone.
        self._resting: dict[int, float] = {}
        # Segment -> when (monotonic) its dead bytes must be removed.
        self._deadlines: dict[int, float] = {}
        self.merges = self.merged_bytes = 0

    async def run(self) -> bool:
        """Do the most urgent merge; return whether there was one."""
        self._tidy()
        # 1. What was downloaded for a merge.
        rewrite = self._take_fetched()
        if rewrite is not None:
            await self._try(rewrite)
            return True
        # 2. The most urgent of the others.
        inputs = await self._choose()
        if not inputs:
            return False
        rewrite = await self._plan(inputs)
        if not rewrite.inputs:
            self._rest(inputs)  # other brokers lead all that is in them
            return True
        pinned = [found for row in rewrite.inputs if (found := self._store.find(row.id))]
        if len(pinned) < len(rewrite.inputs):
            return True  # one was removed
        if len(pinned) < min(2, len(inputs)):
            self._rest(inputs)  # none of them are adjacent
            return True
        for segment in pinned:
            segment.pins += 1  # from here on an existing file stays
        try:
            # Most downloads are short; of a longer one the merge is done by a later call.
            if not await self._fetch(rewrite) or await self.fetcher.wait(FETCH_WAIT_S):
                await self._try(rewrite)
        finally:
            for segment in pinned:
                segment.pins -= 1
        return True

    async def _try(self, rewrite: Rewrite) -> None:
        """Do one merge; after a failure it is not tried again for a while."""
        try:
            await self._rewrite(rewrite)
        except StaleSwap:
            logger.info("segments changed during a merge, planning again later")
            # It would be planned and written again at once, until the leader has changed.
            if self._swapper.any_handed_over(rewrite.parts):
                self._rest(rewrite.inputs)
        except Exception as failure:
            if isinstance(failure, KafkaError) and failure.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                logger.info("a partition was moved during a merge, planning again later")
                return
            # A segment that cannot be merged must not stop the merges of all others.
            self._rest(rewrite.inputs)
            raise
        finally:
            if rewrite is self._fetched:
                self._release()

    def _tidy(self) -> None:
        """Release fetched segments that are not needed, and expired retry delays."""
        now = self._env.clock.monotonic()
        # Downloads that failed are not tried again at once.
        self._resting.update({at: now + self._rest_s(at) for at in self.fetcher.take_failed()})
        self._resting = {at: until for at, until in self._resting.items() if until > now}
        rewrite = self._fetched
        if rewrite is None:
            return
        # Inputs that were removed or replaced while they were downloaded.
        stale = not all(self._is_live(row) for row in rewrite.inputs)
        if self.fetcher.is_free or (stale and self.fetcher.is_done):
            self._release()

    def _is_live(self, row: SegmentRow) -> bool:
        """Return whether a segment is still to be merged."""
        segment = self._store.find(row.id)
        if segment is None or segment.row.state != LIVE:
            return False
        return self._is_own(segment) or self._decommissioned.has(row)

    def _is_own(self, segment: Segment) -> bool:
        return segment.row.node_id == self._node_id

    def _take_fetched(self) -> Rewrite | None:
        return self._fetched if self.fetcher.is_done else None

    def _release(self) -> None:
        self._fetched = None
        self.fetcher.release()

    async def _fetch(self, rewrite: Rewrite) -> bool:
        """Return whether inputs must be fetched first, or cannot be."""
        inputs = [self._store.get_segment(row.id) for row in rewrite.inputs]
        try:
            await self._store.prepare_others(inputs)
        except (KafkaError, OSError) as failure:
            logger.warning("cannot copy a segment of a decommissioned broker yet: %s", failure)
            self._rest(rewrite.inputs)
            return True
        if all(segment.row.local for segment in inputs):
            return False
        localizer, copies = self._remote.localizer, not self._is_own(inputs[0])
        # Own ones only if the result is uploaded to replace them: otherwise it would use local disk
        # that uploads have freed.
        if localizer is None or not (copies or localizer.copies(rewrite.parts)):
            self._rest(rewrite.inputs)
        else:
            self._fetched = rewrite
            self.fetcher.fetch(inputs)
        return True

    async def _plan(self, inputs: list[SegmentRow]) -> Rewrite:
        """Return as many of the inputs as fit into one job, from the first on."""
        mappings: list[SegmentRange] = []
        for at, row in enumerate(inputs):
            # The first two inputs are always taken: a merge of fewer is none.
            if at > 1 and len(mappings) >= MAX_MAPPINGS:
                del inputs[at:]
                break
            mappings += await self._storage.segment_mappings([row.id])
        if inputs[0].node_id != self._node_id:  # the broker that led them removes deleted topics
            led = [each for each in mappings if self._config_of(each.number) is not None]
        else:
            led = [each for each in mappings if not self._led_elsewhere(each.number)]
            if len(inputs) == 1 and len(led) < len(mappings):
                led = []  # its file stays for the others, so nothing is freed
        mappings = led
        # One input is rewritten to free its dead bytes, whatever its size.
        most_of = self._most_of if len(inputs) > 1 else no_limit
        for rewrite in plan_rewrite(inputs, mappings, most_of):
            if rewrite is not None:
                return rewrite
            await self._env.slices.pause()
        raise AssertionError("the last step is the plan")

    def _most_of(self, number: int) -> int:
        """Return the most bytes of a partition in one merged segment, which expires as a whole."""
        config = self._config_of(number)
        if config is None:
            return no_limit(number)
        most = config.segment_bytes
        if config.cleanup_delete and config.retention_bytes >= 0:
            # A merged segment expires as a whole: so several of them in `retention.bytes`.
            most = min(most, max(MIN_PIECE_BYTES, config.retention_bytes // SPANS))
        return most

    async def _choose(self) -> list[SegmentRow]:
        """Return the segments of the next merge, in order; none if there is nothing to do."""
        busy = {row.id for row in self._fetched.inputs} if self._fetched is not None else set()
        inputs = await self._choose_own(busy)
        if inputs or busy:
            return inputs  # one download at a time
        other = await self._decommissioned.next_segment(self._resting.keys())
        return [] if other is None else [other.row]

    async def _choose_own(self, busy: Collection[int]) -> list[SegmentRow]:
        """Choose among the segments of this broker. `busy`: those of a merge that has begun."""
        now = self._env.clock.monotonic()
        small: dict[str, list[Segment]] = {}
        sizes: Counter[str] = Counter()
        for at, segment in enumerate(list(self._store.by_id.values()), 1):
            if at % SLICE == 0:
                await self._env.slices.pause()
            row = segment.row
            if row.id in self._resting or row.id in busy or row.state != LIVE or not row.live_bytes:
                continue
            # Without a file it needs a download, of which there is one at a time.
            if row.local or self.fetcher.is_free:
                due = self._deadlines.get(row.id)
                # The first that is due: dead bytes are more urgent than small segments.
                if (due is not None and due <= now) or is_half_dead(row, segment.payload_bytes):
                    return [row]
            kind = row.retention_class
            sizes[kind] += row.live_bytes
            if limits_of(kind).is_small(_item(segment)):
                some = small.setdefault(kind, [])
                if len(some) < MAX_PLANNED:
                    some.append(segment)
        for kind in sorted(small):
            found = await self._merge(kind, small[kind], max_small(sizes[kind]))
            if found:
                return found
        return []

    async def _merge(self, kind: str, small: list[Segment], most: int) -> list[SegmentRow]:
        """Plan to merge the due segments of one retention class. Segments without a file are
        included where fetching them is worth its price."""
        if len(small) < 2:
            return []
        # In the order in which they were cut, which is that of their offsets.
        small.sort(key=lambda segment: (segment.cut_ms, segment.row.id))
        localizer = self._remote.localizer
        # Planning again without what does not pay may find another merge.
        for _ in range(MAX_REFUSED):
            found = self._next(kind, small, most)
            if all(segment.row.local for segment in found):
                return [segment.row for segment in found]
            if localizer is not None and localizer.pays(found):
                return [segment.row for segment in found] if self.fetcher.is_free else []
            away = {segment.row.id for segment in found if not segment.row.local}
            small = [segment for segment in small if segment.row.id not in away]
            await self._env.slices.pause()
        return []

    def _next(self, kind: str, small: Sequence[Segment], most: int) -> list[Segment]:
        now_ms = self._env.clock.now_ms()
        found = next_merge(map(_item, small), limits_of(kind), most, now_ms)
        return [self._store.by_id[item.id] for item in found]

    def _rest(self, inputs: Sequence[SegmentRow]) -> None:
        now = self._env.clock.monotonic()
        self._resting.update({row.id: now + self._rest_s(row.id) for row in inputs})

    def _rest_s(self, segment_id: int) -> float:
        return RESTED_S if segment_id in self._store.by_id else COPY_RETRY_S

    async def _rewrite(self, rewrite: Rewrite) -> None:
        pinned = self._find_inputs(rewrite)
        # Above all inputs: readers of files alone take the newest generation.
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
        # The output is as old as its newest part, for the plans of later merges.
        cut_ms = max(segment.cut_ms for segment in pinned)
        for segment in pinned:
            segment.pins += 1
        try:
            arguments = RewriteArguments(
                self._node_id,
                row.created_ms,
                await self._inputs(rewrite),
                SegmentOutput(output.path, row.uuid, [], row.generation, row.retention_class),
                await self._origins.current_topics(rewrite.parts),
            )
            result: JobResult = await self._env.worker.run(
                "rewrite", arguments, self._config.worker_bytes_per_second
            )
            finished, left_out = await self._outcome(result, row, rewrite)
            if finished:
                await self._swapper.replace(finished, rewrite.list_replaced(left_out))
                # The row says when the segment was written.
                self._store.by_id[row.id].cut_ms = cut_ms
        except Exception:
            # If the outcome is unknown the file may be that of a LIVE row.
            if not self._swapper.in_doubt(row):
                await self._store.discard([output])
            raise
        finally:
            for segment in pinned:
                segment.pins -= 1
        copies = not self._is_own(pinned[0])
        if left_out or (copies and not finished):  # then rows below the log start are removed soon
            self._rest(rewrite.inputs)
        if not finished:
            await self._store.discard([output])
        if len(pinned) > 1:
            self.merges += 1
            self.merged_bytes += sum(mapping.length for _, some in finished for mapping in some)
        if copies:
            logger.info(
                "copied segment %s of broker %d, which is decommissioned, as far as this broker "
                "leads it, into segment %s", pinned[0].name, pinned[0].row.node_id, output.name,
            )  # fmt: skip
        else:
            logger.info("merged %s into segment %s", count(len(pinned), "segment"), output.name)

    def _find_inputs(self, rewrite: Rewrite) -> list[Segment]:
        """Return the inputs. StaleSwap if one of another broker lost its last mapping meanwhile."""
        found = [self._store.find(row.id) for row in rewrite.inputs]
        pinned = [segment for segment in found if segment is not None]
        if len(pinned) < len(found):
            raise StaleSwap
        return pinned

    async def _inputs(self, rewrite: Rewrite) -> list[Input]:
        keeps: dict[int, list[Keep]] = {row.id: [] for row in rewrite.inputs}
        for at, mapping in enumerate(rewrite.list_replaced()):
            partition = self._partitions.get(mapping.number)
            # Of one that is not in memory the inputs know an earlier one, which is kept.
            start = 0 if partition is None else partition.log_start
            keeps[mapping.segment_id].append(
                Keep(mapping.number, mapping.base_offset, mapping.end_offset, start)
            )
            if at % KEEPS_AT_ONCE == KEEPS_AT_ONCE - 1:
                await self._env.slices.pause()
        inputs = []
        for row in rewrite.inputs:
            packed: list[bytes] = []
            # Packed in slices: a segment may have ten thousand partitions.
            for at in range(0, len(keeps[row.id]), KEEPS_AT_ONCE):
                packed += pack(keeps[row.id][at : at + KEEPS_AT_ONCE])
                await self._env.slices.pause()
            if packed:
                inputs.append(Input(self._store.get_segment(row.id).path, row.uuid, packed))
        return inputs

    async def _outcome(
        self, result: JobResult, row: SegmentRow, rewrite: Rewrite
    ) -> tuple[list[tuple[SegmentRow, list[SegmentRange]]], list[int]]:
        """Return the written segment, and the partitions left out because they are damaged."""
        for damage in result.damaged:
            partition = self._partitions.get(damage.number)
            name = f"partition {damage.number}"
            if partition is not None:
                name = f"{partition.topic}-{partition.index}"
            logger.critical(
                "%s cannot be merged: %s, at byte %d of %s. It is kept unchanged, other segments "
                "are merged; `kafkawire tier scrub --deep` and `kafkawire fsck` list the damage",
                name,
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
            # Retention must not check later than it would have checked the inputs.
            number: min(mapping.due_ms for mapping in part)
            for number, part in rewrite.parts.items()
        }
        mappings = [mapping._replace(due_ms=dues[mapping.number]) for mapping in mappings]
        return [(row, mappings)], left_out

    async def find_candidates(self, dead_max_s: float) -> None:
        """Set a deadline for segments with dead bytes.

        The original sizes of those of earlier starts are read from their trailers.
        """
        living = [item for item in self._store.by_id.values() if item.row.state == LIVE]
        unknown = [item for item in living if item.payload_bytes < 0]
        # Of remote ones by requests, in the background.
        self.fetcher.learn(item for item in unknown if not item.row.local)
        # A few at each call: there may be thousands after a start.
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
            # Dead bytes, perhaps a deleted topic's: the deadline counts from when they were first
            # seen.
            if row.live_bytes < segment.payload_bytes:
                deadlines[row.id] = self._deadlines.get(row.id, now + dead_max_s)
        self._deadlines = deadlines


def payloads(fs: FileSystem, paths: list[str]) -> list[int]:
    """Return the bytes of batches in each segment; 0 where that cannot be read. Runs in a
    thread."""
    return [payload_bytes(fs, path) for path in paths]


def _item(segment: Segment) -> MergeCandidate:
    row = segment.row
    return MergeCandidate(row.id, row.live_bytes, segment.cut_ms, row.generation)
