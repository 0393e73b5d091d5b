"""Correct the rows of segments in SQL after local segment files were lost, from SQL and the tiers.

For a broker that starts with an empty data folder, before its log and its own service of the tier
run; `find_only_in_folder` finds what would be lost then. Segments with a finished object are only
in the remote tier from then on. Mappings into segments without file and object are replaced by
finished objects that a merge or compaction had replaced locally, as far as these are contiguous.
Later mappings are removed: their records are at or above the commit offset, and must come from
elsewhere (log objects).

STARTED and DELETING segments and interrupted uploads are left to the start of the log and of the
tier, which do not need the files.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import (
    Input,
    JobResult,
    Keep,
    RewriteArguments,
    SegmentOutput,
    entries_of,
    no_pace,
    pack,
)
from kafkawire.log.segments.file.open import SUFFIX, segment_path
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.merge import job
from kafkawire.log.segments.store.segment_store import remove
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.catalog import Catalog
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.port import (
    EVERYTHING,
    LIVE,
    EnteredObject,
    PartitionRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    Swap,
    range_of,
)
from kafkawire.plural import count
from kafkawire.restore.choose_segments import Chosen, PieceKind, SegmentPiece, cover_lost_files
from kafkawire.restore.finished_objects import FinishedObjects, StoredPart, Stores
from kafkawire.tiering.store.metering import Meter
from kafkawire.tiering.store.open import open_store
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls
from kafkawire.tiering.store.tiers import Tiers

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 1000
"""Segments per transaction."""
SCANNED_AT_ONCE = 500
"""Partitions read at a time, with all their mappings."""
PARTITIONS_AT_ONCE = 100
"""Partitions whose objects are read at a time."""
MAPPINGS_AT_ONCE = 1000
"""Changed mappings from which a transaction takes no further partition: tens of milliseconds."""
MAX_NAMED = 10
"""Most partitions named in one sentence or log line."""
TRIES = 5
"""Attempts while other brokers change the same rows."""
DUE_NOW = 0
"""Retention check time that is already due; the first check computes the next one."""
FOLDER = "tier-restore"
"""In the broker's folder, for one object at a time."""
Copied = tuple[SegmentRow, list[SegmentRange]]
DURABILITY = "durability"
ELSEWHERE = frozenset({"s3", "replicated"})
"""The topic setting that is fixed at creation, and its values for topics of which log objects or
followers have the latest records."""


async def find_only_in_folder(storage: SegmentCatalog, catalog: Catalog, node_id: int) -> list[str]:
    """Return the partitions led by this broker, as `topic-0`, that have records and have
    durability=local: a start with an empty folder would lose them. After MAX_NAMED of them
    `5 more`. Empty if there is none. Records that were written after the partition's creation and
    before its first checkpoint are not counted. Raises the storage's errors."""
    safe = {topic for topic, own in catalog.list_configured() if own.get(DURABILITY) in ELSEWHERE}
    numbers = [
        number
        for group in catalog.groups()
        if group.leader == node_id
        for number in catalog.partitions_of_group(group.id)
        if (where := catalog.locate(number)) is not None and where.topic_id not in safe
    ]
    found: list[int] = []
    for at in range(0, len(numbers), SCANNED_AT_ONCE):
        for stats in await storage.stats(numbers[at : at + SCANNED_AT_ONCE]):
            if stats.checkpoint_offset > 0 or stats.mappings:
                found.append(stats.number)
    names = sorted(map(catalog.name_of, found))
    more = len(names) - MAX_NAMED
    return [*names[:MAX_NAMED], f"{more:,} more"] if more > 0 else names


@dataclass(frozen=True, slots=True, order=True)
class UnreadableRange:
    """Offsets [first, end) of a partition that are below its commit offset, or of another broker's
    partition, and in no file and no object."""

    topic: str
    index: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index} offsets {self.first}-{self.end - 1}"


async def correct_rows(
    env: Env,
    config: BrokerConfig,
    storage: SegmentCatalog,
    catalog: Catalog,
    store: ObjectStore,
    home: str,
) -> list[UnreadableRange]:
    """Remove from SQL what only lost files of this broker had; see `forget_lost_files`. `store`: of
    `tier.url`; it stays open."""
    meter = Meter(env.clock.now_ms, env.clock.monotonic)
    tiers = Tiers(
        env, storage, meter, lambda url: open_store(url, config), parse_tier(config.tier_url).url,
        store, home, config.node_id,
    )  # fmt: skip
    try:
        await tiers.open()
        return await forget_lost_files(
            env, storage, catalog, config.node_id, home, tiers.find_store
        )
    finally:
        await tiers.close_others()


async def forget_lost_files(
    env: Env,
    storage: SegmentCatalog,
    catalog: Catalog,
    node_id: int,
    home: str,
    stores: Stores,
) -> list[UnreadableRange]:
    """Correct the rows of this broker's segments and of the partitions that it leads; return what
    cannot be read any more, which is logged. `home`: the broker's folder; files that are in its
    folder `segments` are kept in use.

    Raises StoreError if a tier cannot be read, NewerFormatError, OSError, and what the storage
    raises; then nothing that is needed is lost, and the call can be repeated.
    """
    for left in range(TRIES - 1, -1, -1):
        try:
            return await _Correction(env, storage, catalog, node_id, home, stores).run()
        except StaleSwap:
            if not left:
                raise
    raise AssertionError("the last attempt returns or raises")


@dataclass(slots=True)
class _Change:
    """The changes of one transaction."""

    removed: list[SegmentRange] = field(default_factory=list)
    entered: dict[bytes, EnteredObject] = field(default_factory=dict)
    size: int = 0

    def enter(self, part: StoredPart) -> None:
        row, made, mappings = self.entered.get(part.object.uuid, (part.segment, part.object, []))
        mappings = [*mappings, range_of(part.entry, 0, DUE_NOW)]
        self.entered[part.object.uuid] = row, made, mappings
        self.size += 1

    def remove(self, mappings: Collection[SegmentRange]) -> None:
        self.removed += mappings
        self.size += len(mappings)


class _Correction:
    """One attempt. `_lost`: the LIVE segments of this broker without file and object."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        catalog: Catalog,
        node_id: int,
        home: str,
        stores: Stores,
    ) -> None:
        self._env = env
        self._storage = storage
        self._catalog = catalog
        self._node_id = node_id
        self._folder = os.path.join(home, "segments")
        self._objects = FinishedObjects(env, storage, stores, node_id)
        self._copier = PartCopier(env, storage, catalog, node_id, home, stores)
        self._lost: set[int] = set()

    async def run(self) -> list[UnreadableRange]:
        await self._remove_orphans()
        await self._check_files()
        damaged, unreadable = await self._scan(self._list_led())
        if damaged:
            await self._objects.open(damaged)
            for at in range(0, len(damaged), PARTITIONS_AT_ONCE):
                await self._replace(damaged[at : at + PARTITIONS_AT_ONCE])
            logger.warning(
                "segment files of %s without an object are gone: their records are read from the "
                "remote tier as far as it has them, later ones from log objects or journals",
                count(len(damaged), "partition"),
            )
            unreadable += (await self._scan(damaged, again=True))[1]
        unreadable += await self._list_remaining()
        unreadable.sort()
        if unreadable:
            more = len(unreadable) - MAX_NAMED
            logger.critical(
                "no segment file and no object of the remote tier has %s%s: they can be read only "
                "if they are in the log; if not, stop the broker and restore a backup of its "
                "data folder",
                ", ".join(map(str, unreadable[:MAX_NAMED])),
                f" and {more} more" if more > 0 else "",
            )
        return unreadable

    async def _remove_orphans(self) -> None:
        # First: of a deleted topic nothing has to be read, so its segments need no object.
        while numbers := await self._storage.orphans(SCANNED_AT_ONCE):
            await self._storage.remove_mappings(dict.fromkeys(numbers, EVERYTHING))

    async def _check_files(self) -> None:
        """Find the segments without a file; those with an object are not local any more."""
        there = await self._env.offload.submit("files", self._files)
        after, page, changed = 0, SEGMENTS_AT_ONCE, 0
        while page == SEGMENTS_AT_ONCE:
            rows = await self._storage.segments(self._node_id, (LIVE,), SEGMENTS_AT_ONCE, after)
            gone = [row for row in rows if row.uuid.hex() + SUFFIX not in there]
            self._lost.update(row.id for row in gone if not row.object)
            ids = [row.id for row in gone if row.object and row.local]
            if ids:
                await self._storage.set_local(ids, False)
            page, after, changed = len(rows), rows[-1].id if rows else 0, changed + len(ids)
        if changed:
            logger.warning(
                "%s without a file: read from the remote tier from now on",
                count(changed, "segment"),
            )

    def _files(self) -> set[str]:
        """Return the names in the folder of segments. Runs in a thread."""
        self._env.fs.makedirs(self._folder)
        return set(self._env.fs.listdir(self._folder))

    def _list_led(self) -> list[int]:
        groups = [group.id for group in self._catalog.groups() if group.leader == self._node_id]
        return sorted(
            number for group in groups for number in self._catalog.partitions_of_group(group)
        )

    async def _scan(
        self, numbers: Sequence[int], *, again: bool = False
    ) -> tuple[list[int], list[UnreadableRange]]:
        """Return the partitions with mappings into lost segments, and what the others, or, `again`,
        all of them, lack below their commit offsets."""
        damaged: list[int] = []
        unreadable: list[UnreadableRange] = []
        for at in range(0, len(numbers), SCANNED_AT_ONCE):
            for row in await self._storage.load_partitions(numbers[at : at + SCANNED_AT_ONCE]):
                if any(each.segment_id in self._lost for each in row.mappings):
                    damaged.append(row.number)
                    if not again:
                        continue
                start = _log_start(row)
                end = max(start, row.mappings[-1].end_offset if row.mappings else start)
                if row.commit_offset > end:
                    unreadable += self._name_range(row.number, end, row.commit_offset)
            await self._env.slices.pause()
        return damaged, unreadable

    async def _list_remaining(self) -> list[UnreadableRange]:
        """Return the offsets that lost segments still have."""
        rows = await self._storage.segment_mappings(sorted(self._lost))
        return [
            named
            for row in rows
            for named in self._name_range(row.number, row.base_offset, row.end_offset)
        ]

    def _name_range(self, number: int, first: int, end: int) -> Iterable[UnreadableRange]:
        where = self._catalog.locate(number)
        return [] if where is None else [UnreadableRange(where.topic, where.index, first, end)]

    async def _replace(self, numbers: Sequence[int]) -> None:
        rows = await self._storage.load_partitions(numbers)
        ids = sorted({each.segment_id for row in rows for each in row.mappings})
        segments = {row.id: row for row in await self._storage.segments_by_id(ids)}
        stored = await self._objects.find_parts(numbers)
        change = _Change()
        for row in rows:
            pieces = _Pieces(row, segments, self._lost, stored[row.number])
            chosen = pieces.choose()
            if any(each.is_part for each in chosen):
                await self._copy_parts(pieces, chosen)
            else:
                change.remove(pieces.others(chosen))
                for part in pieces.list_entered(chosen):
                    change.enter(part)
            # Whole partitions in each transaction: a call after a crash continues where it was.
            if change.size >= MAPPINGS_AT_ONCE:
                await self._apply(change)
                change = _Change()
        await self._apply(change)

    async def _apply(self, change: _Change) -> None:
        if change.size:
            swap = Swap([], change.removed)
            await self._storage.replace_lost(swap, list(change.entered.values()))

    async def _copy_parts(self, pieces: _Pieces, chosen: list[Chosen]) -> None:
        """Replace the mappings of one partition, some of them by copies of parts of objects."""
        # Mappings cannot point to a part of a segment, but the outputs of a compaction may end
        # within an input. If only some of them were uploaded when the local files were lost, the
        # end of that input is in its object alone.
        change, row = _Change(), pieces.row
        change.remove(pieces.others(chosen))
        swap = Swap([], change.removed)
        generation = 1 + max(map(pieces.generation, change.removed), default=-1)
        for each in chosen:
            if not each.is_part:
                continue
            keep = Keep(row.number, each.start, each.piece.end, _log_start(row))
            copied = await self._copier.copy(pieces.source(each.piece), keep, generation)
            # The object cannot be read: choose again without it.
            if copied is None:
                pieces.leave_out(each.piece)
                await self._copier.delete_copies([made for made, _ in swap.finished])
                return await self._copy_parts(pieces, pieces.choose())
            swap.finished.append(copied)
        for part in pieces.list_entered(chosen):
            change.enter(part)
        await self._storage.replace_lost(swap, list(change.entered.values()))


class _Pieces:
    """The files and objects that one partition may be read from. The keys of pieces are indexes:
    first its mappings, then the parts of finished objects."""

    def __init__(
        self,
        row: PartitionRow,
        segments: dict[int, SegmentRow],
        lost: Collection[int],
        stored: Sequence[StoredPart],
    ) -> None:
        self.row = row
        self._segments = segments
        self._stored = stored
        self._pieces: list[SegmentPiece] = []
        for key, each in enumerate(row.mappings):
            segment = segments.get(each.segment_id)
            generation = 0 if segment is None else segment.generation
            kind = PieceKind.LOST if each.segment_id in lost else PieceKind.KEPT
            has_object = segment is not None and bool(segment.object)
            self._pieces.append(
                SegmentPiece(each.base_offset, each.end_offset, generation, kind, has_object, key)
            )
        for key, part in enumerate(stored, len(row.mappings)):
            entry, generation = part.entry, part.segment.generation
            self._pieces.append(
                SegmentPiece(
                    entry.base_offset, entry.end_offset, generation, PieceKind.STORED, True, key
                )
            )

    def choose(self) -> list[Chosen]:
        begin = max(_log_start(self.row), self.row.mappings[0].base_offset)
        return cover_lost_files(self._pieces, begin, self.row.commit_offset)

    def leave_out(self, piece: SegmentPiece) -> None:
        at = self._pieces.index(piece)
        self._pieces[at] = piece._replace(has_object=False)

    def others(self, chosen: Iterable[Chosen]) -> list[SegmentRange]:
        kept = {each.piece.key for each in chosen if not each.is_part}
        return [each for key, each in enumerate(self.row.mappings) if key not in kept]

    def list_entered(self, chosen: Iterable[Chosen]) -> list[StoredPart]:
        first = len(self.row.mappings)
        return [
            self._stored[each.piece.key - first]
            for each in chosen
            if each.piece.kind == PieceKind.STORED and not each.is_part
        ]

    def source(self, piece: SegmentPiece) -> SegmentRow:
        at = piece.key - len(self.row.mappings)
        if at >= 0:
            return self._stored[at].segment
        return self._segments[self.row.mappings[piece.key].segment_id]

    def generation(self, mapping: SegmentRange) -> int:
        segment = self._segments.get(mapping.segment_id)
        return 0 if segment is None else segment.generation


def _log_start(row: PartitionRow) -> int:
    return row.checkpoint.log_start if row.checkpoint is not None else 0


class PartCopier:
    """Copies parts of objects that no other segment has into new local segments, which are STARTED
    until a swap finishes them, and are uploaded later. `home`: the broker's folder."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        catalog: Catalog,
        node_id: int,
        home: str,
        stores: Stores,
    ) -> None:
        self._env = env
        self._storage = storage
        self._origins = Origins(env, catalog)
        self._node_id = node_id
        self._segments = os.path.join(home, "segments")
        self._temporary = os.path.join(home, FOLDER)
        self._stores = stores

    async def copy(self, source: SegmentRow, keep: Keep, generation: int) -> Copied | None:
        """Return a segment with the offsets to keep of one partition; None if the object of the
        source cannot be read. Raises StoreError and OSError if a retry may help, and the storage's
        errors."""
        env, submit = self._env, self._env.offload.submit
        store = self._stores(source.tier)
        if store is None:
            return None
        key, path = segment_key(source.object), os.path.join(self._temporary, source.object.hex())
        row = SegmentRow(
            env.random.randbytes(16), self._node_id, env.clock.now_ms(),
            generation=generation, retention_class=source.retention_class,
        )  # fmt: skip
        # Before its file: the next start removes what a crash leaves of STARTED segments.
        (row.id,) = await self._storage.start_segments([row])
        output = SegmentOutput(
            segment_path(self._segments, row.uuid), row.uuid, [], generation, row.retention_class
        )
        origin = await self._origins.current_topics([keep.number])
        arguments = RewriteArguments(
            self._node_id, row.created_ms, [Input(path, source.uuid, pack([keep]))], output, origin
        )
        await submit("files", self._prepare, path)
        try:
            await RetryingCalls(env, store).download(key, path, -1)
            result: JobResult = await submit("files", job.run, env.fs, arguments, no_pace)
            problem = result.damaged[0].text if result.damaged else ""
        except (NoSuchObject, FormatError, ValueError) as failure:
            problem = str(failure)
        finally:
            await submit("files", env.fs.remove, path)
        if problem or not result.made[0].size_bytes:
            logger.error("cannot copy from %s: %s", key, problem or "it has no such records")
            await self._storage.drop_segments([row.id])
            return None
        (made,) = result.made
        row.size_bytes = made.size_bytes
        return row, [range_of(entry, row.id, DUE_NOW) for entry in entries_of(made)]

    async def delete_copies(self, rows: Sequence[SegmentRow]) -> None:
        """Remove copies that are not used. Raises OSError and the storage's errors."""
        # The files first: none may be left without a row.
        paths = [segment_path(self._segments, row.uuid) for row in rows]
        await self._env.offload.submit("files", remove, self._env.fs, self._segments, paths)
        await self._storage.drop_segments([row.id for row in rows])

    def _prepare(self, path: str) -> None:
        """Remove what an earlier process left. Runs in a thread."""
        self._env.fs.makedirs(self._temporary)
        self._env.fs.remove(path)
