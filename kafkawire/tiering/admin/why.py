"""Reasons why parts of a partition are not in the remote tier yet.

A range is a segment without a finished object, or records that are only in the journals. A
condition that blocks all uploads (another owner, a pause, a bucket that cannot be attached, a
manifest that cannot be written) takes precedence; otherwise the reason comes from the dispatcher,
if the segment is registered there. The bucket is not read, so this also works while the storage is
down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.cut.schedule import CUT_PART, NEVER
from kafkawire.log.segments.store.remote_port import local_log_start
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.tiering.upload.scheduler import Reason, Why

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering


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
    """Return the state of a partition in memory."""
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
    """Return the ranges that are not in the tier, by offset; neighbours with the same reason are
    merged."""
    found: list[LocalOnlyRange] = []
    find = tiering.log.segments.store.find
    for base, end, segment_id, length in shape.rows:
        segment = find(segment_id)
        if end <= shape.log_start or (segment is not None and segment.row.object):
            continue
        start = max(base, shape.log_start)
        why = _not_wanted(shape.config) or _of_segment(tiering, segment_id)
        found.append(LocalOnlyRange(start, end, length, why, _made(tiering, segment_id)))
    start = max(shape.cut_offset, shape.log_start)
    if start < shape.high_watermark:
        why = _not_wanted(shape.config) or _of_journals(tiering, shape)
        since = min((tiering.log.segments.cutter.timing.held_since(n) for n in shape.journals),
                    default=NEVER)  # fmt: skip
        found += _in_journals(shape, start, why, since)
    return merged(found)


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


def merged(found: Iterable[LocalOnlyRange]) -> list[LocalOnlyRange]:
    """Merge neighbours with the same reason; the newer range supplies the details."""
    joined: list[LocalOnlyRange] = []
    for piece in found:
        last = joined[-1] if joined else None
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
    """Return the short name of a failure."""
    return failure.code if isinstance(failure, StoreError) else type(failure).__name__


def _text(failure: BaseException | None) -> str:
    return "" if failure is None else str(failure)


def _made(tiering: Tiering, segment_id: int) -> float:
    """Return when a segment was made, by the monotonic clock, because the wall clock may have
    jumped."""
    segment = tiering.log.segments.store.find(segment_id)
    if segment is None:
        return NEVER
    age_ms = tiering.env.clock.now_ms() - segment.row.created_ms
    return tiering.env.clock.monotonic() - max(0, age_ms) / 1000
