"""`kafkawire tier status` and `why`: the state of the tier and the upload progress of each
partition.

Results are plain JSON values in pages of at most PAGE partitions, which bounds memory and
event-loop time with a million partitions. Partitions that are not in memory are read from SQL; the
bucket is never read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafkawire.log.segments.cut.schedule import NEVER
from kafkawire.tiering.admin.why import (
    LocalOnlyRange,
    PartitionTiering,
    code_of,
    held_up,
    pieces,
    shape_of,
    stored_shape,
)
from kafkawire.tiering.upload.scheduler import Reason

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering

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
    objects, logs = tiering.log.commit_log.objects, tiering.log.object_logs
    return {
        "stored": objects.stored_objects,
        "released": objects.released_objects,
        "unreleased": {} if logs is None else logs.unreleased(),
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
    uploaded = await _uploaded(tiering, [shape for _, shape in shapes])
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


async def _uploaded(tiering: Tiering, shapes: Sequence[PartitionTiering]) -> dict[int, int]:
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
