"""`kafkawire tier status` and `why`: the state of the tier and the upload progress of each
partition.

Results are plain JSON values in pages of at most PAGE partitions, which bounds memory and
event-loop time with a million partitions. Partitions that are not in memory are read from SQL; the
bucket is never read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.cut.schedule import CUT_PART, NEVER
from kafkawire.log.segments.store.remote_tier import local_log_start
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.tiering.upload.scheduler import Reason, Why

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering


# Reasons why parts of a partition are not in the remote tier yet.
#
# A range is a segment without a finished object, or records that are only in the journals. A
# condition that blocks all uploads (another owner, a pause, a bucket that cannot be attached, a
# manifest that cannot be written) takes precedence; otherwise the reason comes from the dispatcher,
# if the segment is registered there. The bucket is not read, so this also works while the storage
# is down.


@dataclass(slots=True)
class PartitionTiering:
    """Tiering state of a partition, in memory or not. `rows`: (base, end, segment id, bytes) by
    offset; `journal_bytes`: the bytes after them; `journals`: their journal numbers; `opened`:
    producer ID and first offset of the oldest open transaction."""

    number: int
    config: TopicConfig
    log_start: int
    local_log_start: int
    dispatch_offset: int
    commit_offset: int
    high_watermark: int
    cut_offset: int
    rows: Sequence[tuple[int, int, int, int]]
    journal_bytes: int = 0
    journals: Sequence[int] = ()
    opened: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LocalOnlyRange:
    """Offsets [start, end) that are not in the tier. `since`: when the oldest segment was made, or
    when its journal first held tiered records (monotonic; NEVER: unknown). `segments`: number of
    segments, 0 if the range is only in the journals. `producer_id`: of the open transaction that is
    the reason."""

    start: int
    end: int
    size_bytes: int
    why: Why
    since: float = NEVER
    segments: int = 1
    producer_id: int | None = None


def shape_of(tiering: Tiering, partition: Partition) -> PartitionTiering:
    rows, number = partition.segments, partition.number
    journals = list(partition.journal_extents.journal)
    active = tiering.log.journals.active
    if number in active.numbers:
        journals.append(active.number)
    return PartitionTiering(
        number=number,
        config=partition.config,
        log_start=partition.log_start,
        local_log_start=local_log_start(partition, tiering.log.segments.store),
        dispatch_offset=partition.dispatch_offset,
        commit_offset=partition.commit_offset,
        high_watermark=partition.high_watermark,
        cut_offset=partition.cut_offset,
        rows=list(zip(rows.base, rows.end, rows.segment, rows.length, strict=True)),
        journal_bytes=max(0, partition.size_bytes - sum(rows.length)),
        journals=journals,
        opened=_oldest_transaction(partition),
    )


def _oldest_transaction(partition: Partition) -> tuple[int, int] | None:
    transactions = partition.producers.transactions
    return None if transactions is None else next(iter(transactions.open.items()), None)


def stored_shape(tiering: Tiering, row: PartitionRow, config: TopicConfig) -> PartitionTiering:
    """Return the state of a partition that is not in memory, which is entirely in segments."""
    log_start = row.checkpoint.log_start if row.checkpoint is not None else 0
    end = row.mappings[-1].end_offset if row.mappings else log_start
    local_from = max(end, log_start)
    for mapping in reversed(row.mappings):
        if not tiering.log.segments.store.is_local(mapping.segment_id):
            break
        local_from = max(mapping.base_offset, log_start)
    return PartitionTiering(
        number=row.number,
        config=config,
        log_start=log_start,
        local_log_start=local_from,
        dispatch_offset=row.dispatch_offset,
        commit_offset=row.commit_offset,
        high_watermark=row.checkpoint.next_offset if row.checkpoint is not None else end,
        cut_offset=end,
        rows=[(m.base_offset, m.end_offset, m.segment_id, m.length) for m in row.mappings],
    )


def pieces(tiering: Tiering, shape: PartitionTiering) -> list[LocalOnlyRange]:
    """Return the ranges that are not in the tier, by offset; merged if the reason is the same."""
    found: list[LocalOnlyRange] = []
    find = tiering.log.segments.store.find
    for base, end, segment_id, length in shape.rows:
        segment = find(segment_id)
        if end <= shape.log_start or (segment is not None and segment.row.object):
            continue
        start = max(base, shape.log_start)
        why = _not_wanted(shape.config) or _of_segment(tiering, segment_id)
        found.append(
            LocalOnlyRange(start, end, length, why, _find_creation_time(tiering, segment_id))
        )
    start = max(shape.cut_offset, shape.log_start)
    if start < shape.high_watermark:
        why = _not_wanted(shape.config) or _of_journals(tiering, shape)
        since = min((tiering.log.segments.cutter.timing.held_since(n) for n in shape.journals),
                    default=NEVER)  # fmt: skip
        found += _in_journals(shape, start, why, since)
    return merge_neighbours(found)


def _in_journals(
    shape: PartitionTiering, start: int, why: Why, since: float
) -> list[LocalOnlyRange]:
    """Return the ranges that are only in the journals: what waits for an open transaction apart
    from what is before it. Their bytes are estimated by their offsets."""
    end, size = shape.high_watermark, shape.journal_bytes
    border = end
    if shape.opened is not None and why.reason is Reason.ACTIVE:
        border = min(max(start, shape.opened[1]), end)
    before = size * (border - start) // (end - start)
    found = [LocalOnlyRange(start, border, before, why, since, 0)] if border > start else []
    if border < end and shape.opened is not None:
        producer_id, first = shape.opened
        text = f"producer {producer_id} has a transaction open since offset {first}"
        open_now = Why(Reason.TRANSACTION, detail=text)
        found.append(LocalOnlyRange(border, end, size - before, open_now, since, 0, producer_id))
    return found


def merge_neighbours(found: Iterable[LocalOnlyRange]) -> list[LocalOnlyRange]:
    """Merge neighbours with the same reason; the earliest of their times are kept."""
    joined: list[LocalOnlyRange] = []
    for piece in found:
        last = joined[-1] if joined else None
        # Not with what is only in the journals.
        if (
            last is not None
            and piece.segments
            and last.end == piece.start
            and (last.why.reason, last.why.detail) == (piece.why.reason, piece.why.detail)
        ):
            joined[-1] = replace(
                last,
                end=piece.end,
                size_bytes=last.size_bytes + piece.size_bytes,
                why=last.why._replace(until=min(last.why.until, piece.why.until)),
                since=min(last.since, piece.since),
                segments=last.segments + piece.segments,
            )
        else:
            joined.append(piece)
    return joined


def _not_wanted(config: TopicConfig) -> Why | None:
    if config.copies:
        return None
    name = "remote.log.copy.disable=true" if config.tiered else "remote.storage.enable=false"
    return Why(Reason.NOT_TIERED, detail=name)


def _of_journals(tiering: Tiering, shape: PartitionTiering) -> Why:
    cutter = tiering.log.segments.cutter
    damaged = cutter.damaged.get(shape.number)
    if damaged is not None:
        return Why(Reason.ERROR, detail=f"the batch at offset {damaged} is damaged on disk")
    until = min((cutter.timing.cut_by(number) for number in shape.journals), default=NEVER)
    if until == NEVER:  # not cut yet
        until = tiering.env.clock.monotonic() + CUT_PART * shape.config.tier_lag_ms / 1000
    return Why(Reason.ACTIVE, until)


def _of_segment(tiering: Tiering, segment_id: int) -> Why:
    held = held_up(tiering)
    if held is not None:
        return held
    now = tiering.env.clock.monotonic()
    if segment_id in tiering.dispatcher.candidates:
        why = tiering.dispatcher.why(segment_id, now)
        error = tiering.rounds.error
        if why.reason is Reason.UPLOADING and error is not None:
            until = tiering.dispatcher.error(now)[1] or NEVER
            return Why(Reason.ERROR, until, f"the manifest cannot be written: {code_of(error)}")
        return why
    segment = tiering.log.segments.store.find(segment_id)
    if segment is not None and segment.row.node_id != tiering.node_id:
        return Why(Reason.QUEUED, detail=f"node {segment.row.node_id} uploads it")
    if segment is not None and not segment.row.local:
        return Why(Reason.ERROR, detail="it has neither a file nor an object: run tier scrub")
    return Why(Reason.QUEUED, detail="it is scheduled next")


def held_up(tiering: Tiering) -> Why | None:
    """Return why nothing can be uploaded now, failing requests aside; None if uploads can run."""
    if tiering.dispatcher.foreign:
        return Why(Reason.OWNED_BY_OTHER, detail=_text(tiering.error or tiering.rounds.error))
    if tiering.dispatcher.paused:
        return Why(Reason.PAUSED, detail=f"by {tiering.dispatcher.paused}")
    if tiering.state == "attached":
        return None
    if tiering.error is None:
        return Why(Reason.QUEUED, detail="the tier is being attached")
    return Why(Reason.ERROR, detail=f"the tier cannot be attached: {_text(tiering.error)}")


def code_of(failure: BaseException) -> str:
    return failure.code if isinstance(failure, StoreError) else type(failure).__name__


def _text(failure: BaseException | None) -> str:
    return "" if failure is None else str(failure)


def _find_creation_time(tiering: Tiering, segment_id: int) -> float:
    """Return when a segment was made, by the monotonic clock."""
    # The wall clock may have jumped since.
    segment = tiering.log.segments.store.find(segment_id)
    if segment is None:
        return NEVER
    age_ms = tiering.env.clock.now_ms() - segment.row.created_ms
    return tiering.env.clock.monotonic() - max(0, age_ms) / 1000


PAGE = 500
"""Partitions of one page: a few milliseconds of event-loop time and about 100 KB."""
SLICE = 50
"""Partitions per event-loop iteration."""

Place = tuple[str, int]
"""A topic name and a partition index."""


def tier_facts(tiering: Tiering) -> dict[str, Any]:
    """Return the state of the tier as a whole. Times are UTC milliseconds, or None; `segments`: how
    many this broker wrote and did not delete yet."""
    dispatcher, rounds, meter = tiering.dispatcher, tiering.rounds, tiering.meter
    held = held_up(tiering)
    trouble = meter.trouble
    return {
        "url": tiering.tiers.current.url,
        "moving": tiering.tiers.moving,
        "state": tiering.state,
        "error": None if held is None else f"{held.reason.value} {held.detail}".strip(),
        "paused": bool(dispatcher.paused),
        "owner_epoch": rounds.epoch,
        "manifest_sequence": rounds.sequence,
        "manifest_error": None if rounds.error is None else code_of(rounds.error),
        "segments": len(tiering.log.segments.store.by_id),
        "segments_waiting": len(dispatcher.candidates),
        "uploading": dispatcher.begun,
        "buffered_bytes": dispatcher.buffered_bytes,
        "uploads": tiering.uploader.uploads,
        "uploaded_bytes": tiering.uploader.uploaded_bytes,
        "last_upload_ms": meter.uploaded_ms or None,
        "last_error": None if trouble is None else str(trouble[1]),
        "last_error_ms": None if trouble is None else trouble[0],
        "errors": dict(sorted(meter.errors.items())),
        "promises_missed": sorted(tiering.upload_lag.missed.values()),
        "log_objects": _log_objects(tiering),
        "now_ms": tiering.env.clock.now_ms(),
    }


def _log_objects(tiering: Tiering) -> dict[str, Any]:
    """Return the state of log objects. `unreleased`: how many are needed, by the URL of their
    place; `refusal`: why produces are refused, None if they are not."""
    objects, logs = tiering.log.commit_log.object_sink, tiering.log.object_logs
    return {
        "stored": objects.stored_objects,
        "released": objects.released_objects,
        "unreleased": {} if logs is None else logs.count_unreleased(),
        "unreleased_bytes": objects.unreleased_bytes,
        "unstored_bytes": objects.queue.size_bytes,
        "refusal": None if objects.refusal is None else str(objects.refusal),
    }


async def status(
    tiering: Tiering, topic: str | None, after: Place | None, every: bool
) -> dict[str, Any]:
    """Return a page of partitions after `after`; `next` is the start of the following page.
    Partitions that never had a record, and empty ones of internal topics, are left out unless
    `every` is set or their topic is named."""
    places, more = _page(tiering, topic, after)
    shapes = [
        (place, shape)
        for place, shape in await _shapes(tiering, places)
        if every
        or topic is not None
        or (shape.high_watermark and not _empty_internal(tiering, place, shape))
    ]
    uploaded = await _find_upload_times(tiering, [shape for _, shape in shapes])
    now = tiering.env.clock.monotonic()
    rows = []
    for at, (place, shape) in enumerate(shapes, 1):
        missing = pieces(tiering, shape)
        rows.append(_row(place, shape, missing, uploaded.get(shape.number), now))
        if at % SLICE == 0:
            await tiering.env.slices.pause()
    return {"tier": tier_facts(tiering), "partitions": rows, "next": more}


async def why(
    tiering: Tiering, topic: str | None, after: Place | None, every: bool
) -> dict[str, Any]:
    """Return a page of offset ranges that are not in the tier, with their reasons. `every` adds a
    line for each partition that is completely in the tier, and for each that is not tiered. Empty
    partitions of internal topics, of which there are many, are listed only if their topic is named.
    """
    places, more = _page(tiering, topic, after)
    rows: list[dict[str, Any]] = []
    for at, (place, shape) in enumerate(await _shapes(tiering, places), 1):
        missing = pieces(tiering, shape)
        hidden = topic is None and _empty_internal(tiering, place, shape)
        if every and not missing and not hidden:
            rows.append(_uploaded_whole(place, shape))
        for piece in missing:
            if every or topic is not None or piece.why.reason is not Reason.NOT_TIERED:
                rows.append(_reason(tiering, place, piece, shape.config.tier_lag_ms))
        if at % SLICE == 0:
            await tiering.env.slices.pause()
    return {"tier": tier_facts(tiering), "pieces": rows, "next": more}


def _empty_internal(tiering: Tiering, place: Place, shape: PartitionTiering) -> bool:
    """Return whether this is an empty partition of an internal topic, of which there are many."""
    empty = shape.high_watermark <= shape.log_start
    return empty and tiering.catalog.by_name[place[0]].internal


def _page(tiering: Tiering, topic: str | None, after: Place | None) -> tuple[list[Place], Any]:
    """Return the next partitions by topic and index, and the position of the next page (None: this
    is the last page)."""
    found: list[Place] = []
    for place in _places(tiering, topic, after):
        if len(found) == PAGE:
            return found, list(found[-1])
        found.append(place)
    return found, None


def _places(tiering: Tiering, topic: str | None, after: Place | None) -> Iterator[Place]:
    by_name = tiering.catalog.by_name
    names: Sequence[str] = by_name.in_order() if topic is None else [topic]
    start = 0 if after is None else bisect_left(names, after[0])
    for name in names[start:] if start else names:
        first = after[1] + 1 if after is not None and after[0] == name else 0
        for index in range(first, by_name.size_of(name) or 0):
            yield name, index


async def _shapes(
    tiering: Tiering, places: Sequence[Place]
) -> list[tuple[Place, PartitionTiering]]:
    """Return the partitions led by this broker; those that are not in memory are read from SQL."""
    numbers = {}
    for name, index in places:
        info = tiering.catalog.by_name.partition_of(name, index)
        if info is not None and info.leader == tiering.node_id:
            numbers[info.number] = (name, index)
    partitions = tiering.log.partitions
    absent = [number for number in numbers if number not in partitions]
    stored = {row.number: row for row in await tiering.storage.load_partitions(absent)}
    shapes = []
    for number, place in numbers.items():
        partition, config = partitions.get(number), tiering.log.loader.config_of(number)
        if partition is not None:
            shapes.append((place, shape_of(tiering, partition)))
        elif config is not None and number in stored:
            shapes.append((place, stored_shape(tiering, stored[number], config)))
    return shapes


async def _find_upload_times(
    tiering: Tiering, shapes: Sequence[PartitionTiering]
) -> dict[int, int]:
    """Return when the newest object of each partition was uploaded (UTC ms)."""
    find = tiering.log.segments.store.find
    newest: dict[int, bytes] = {}
    for shape in shapes:
        ends = [end for _, end, _, _ in shape.rows]
        at = bisect_right(ends, shape.commit_offset) - 1
        if at >= 0:
            segment = find(shape.rows[at][2])
            if segment is not None and segment.row.object:
                newest[shape.number] = segment.row.object
    uuids = sorted(set(newest.values()))
    rows = {row.uuid: row for row in await tiering.storage.objects_by_uuid(uuids)} if uuids else {}
    return {number: rows[uuid].created_ms for number, uuid in newest.items() if uuid in rows}


def _row(
    place: Place,
    shape: PartitionTiering,
    missing: Sequence[LocalOnlyRange],
    uploaded_ms: int | None,
    now: float,
) -> dict[str, Any]:
    copied = [piece for piece in missing if piece.why.reason is not Reason.NOT_TIERED]
    since = min((piece.since for piece in copied), default=NEVER)
    errors = [piece.why.detail for piece in copied if piece.why.reason is Reason.ERROR]
    return {
        "topic": place[0],
        "partition": place[1],
        "tiered": "yes" if shape.config.copies else "reads" if shape.config.tiered else "no",
        "log_start": shape.log_start,
        "local_log_start": shape.local_log_start,
        "commit": shape.commit_offset,
        "dispatch": shape.dispatch_offset,
        "high_watermark": shape.high_watermark,
        "lag_records": sum(piece.end - piece.start for piece in copied),
        "lag_bytes": sum(piece.size_bytes for piece in copied),
        "lag_s": 0.0 if since == NEVER else round(max(0.0, now - since), 1),
        "last_upload_ms": uploaded_ms,
        "error": errors[0] if errors else None,
    }


def _reason(tiering: Tiering, place: Place, piece: LocalOnlyRange, lag_ms: int) -> dict[str, Any]:
    """`late`: the range should be uploaded and has waited longer than `lag_ms`, the topic's
    tiering.max.lag.ms. A pause counts as waiting, too."""
    clock = tiering.env.clock
    now, why = clock.monotonic(), piece.why
    until_s = None if why.until == NEVER else round(max(0.0, why.until - now), 1)
    waits_s = None if piece.since == NEVER else max(0.0, now - piece.since)
    wanted = why.reason is not Reason.NOT_TIERED
    return {
        "topic": place[0],
        "partition": place[1],
        "from": piece.start,
        "to": piece.end,
        "bytes": piece.size_bytes,
        "segments": piece.segments,
        "waits_s": None if waits_s is None else round(waits_s, 1),
        "since_ms": None if waits_s is None else clock.now_ms() - int(waits_s * 1000),
        "late": waits_s is not None and waits_s * 1000 > lag_ms and wanted,
        "reason": why.reason.value,
        "detail": why.detail,
        "until_s": until_s,
        "until_ms": None if until_s is None else clock.now_ms() + int(until_s * 1000),
        "producer_id": piece.producer_id,
    }


def _uploaded_whole(place: Place, shape: PartitionTiering) -> dict[str, Any]:
    empty = shape.high_watermark <= shape.log_start
    return {
        "topic": place[0],
        "partition": place[1],
        "from": shape.log_start,
        "to": shape.high_watermark,
        "bytes": sum(length for *_, length in shape.rows),
        "segments": len(shape.rows),
        "waits_s": None,
        "since_ms": None,
        "late": False,
        "reason": Reason.UPLOADED.value,
        "detail": "there are no records" if empty else "",
        "until_s": None,
        "until_ms": None,
        "producer_id": None,
    }
