"""Where the records of a partition are, from its log start to its end.

Any Kafka answers ListOffsets with the log start, the first offset that it has itself (KIP-405), and
the last one that is in the remote tier (KIP-1005). kafkawire adds segments and journals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_SPANS = 400
"""Spans of one partition; with more, neighbours of the same place are joined, and what is left is
narrower than a pixel."""


class RecordPlace(StrEnum):
    """Where records are stored; the values are texts for people, `slug` is for style sheets."""

    JOURNAL = "journal"
    LOCAL = "disk"
    BOTH = "disk and S3"
    REMOTE = "S3 only"
    BROKER = "broker"
    GAP = "no records"

    @property
    def slug(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class MapSpan:
    """Offsets [start, end) in one place. `segments`: how many; `segment`, `object`, `created_ms`:
    those of the only one. `reason`: of a gap."""

    start: int
    end: int
    place: RecordPlace
    size_bytes: int | None = None
    segments: int = 0
    segment: int | None = None
    object: str | None = None
    created_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """A partition with its spans by offset. None: the broker does not say. `exact`: the spans are
    from kafkawire's segments, not only from ListOffsets."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start: int | None
    log_end: int | None
    stable: int | None
    spans: tuple[MapSpan, ...]
    exact: bool = False

    @property
    def offsets(self) -> int:
        """Return how many offsets there are from log start to end."""
        if self.log_start is None or self.log_end is None:
            return 0
        return max(0, self.log_end - self.log_start)


def spans_of_bounds(
    log_start: int | None, log_end: int | None, local_start: int | None, tiered_end: int | None
) -> tuple[MapSpan, ...]:
    """Return the spans that ListOffsets shows. `local_start`: the first offset on the broker's own
    disk, `tiered_end`: the offset after the last one in the remote tier; None: not known. Pure."""
    if log_start is None or log_end is None:
        return ()
    remote_to = min(max(log_start, log_start if tiered_end is None else tiered_end), log_end)
    local_from = min(max(log_start, log_start if local_start is None else local_start), log_end)
    kept = [
        MapSpan(log_start, min(local_from, remote_to), RecordPlace.REMOTE),
        MapSpan(local_from, remote_to, RecordPlace.BOTH),
        MapSpan(max(local_from, remote_to), log_end, RecordPlace.BROKER),
    ]
    return tuple(span for span in kept if span.start < span.end)


def spans_of_segments(found: Mapping[str, Any], compacted: bool) -> tuple[MapSpan, ...]:
    """Return the spans of kafkawire's answer (kafkawire.handlers.offset_map). Pure."""
    return tuple(_join(list(_spans(found, compacted))))


def _spans(found: Mapping[str, Any], compacted: bool) -> Iterator[MapSpan]:
    at, end = found["log_start"], found["high_watermark"]
    if found["segments_left_out"] and found["segments"]:
        first = found["segments"][0][0]
        yield MapSpan(at, first, RecordPlace.BROKER, None, found["segments_left_out"])
        at = first
    reason = "compaction removed them" if compacted else "no segment has them"
    for base, stop, segment, size, local, uuid, created in found["segments"]:
        start, stop = max(at, base), min(stop, max(end, found["journals_from"]))
        if start >= stop:
            continue
        if start > at:
            yield MapSpan(at, start, RecordPlace.GAP, reason=reason)
        place = _place(local, uuid is not None)
        yield MapSpan(start, stop, place, size, 1, segment, uuid, created)
        at = stop
    journals = found["journals_from"]
    if at < journals:
        yield MapSpan(at, journals, RecordPlace.GAP, reason=reason)
    if max(at, journals) < end:
        yield MapSpan(max(at, journals), end, RecordPlace.JOURNAL)


def _place(local: bool, uploaded: bool) -> RecordPlace:
    if local:
        return RecordPlace.BOTH if uploaded else RecordPlace.LOCAL
    return RecordPlace.REMOTE


def _join(spans: Sequence[MapSpan]) -> Iterable[MapSpan]:
    """Join neighbours of the same place if there are more than MAX_SPANS."""
    if len(spans) <= MAX_SPANS:
        return spans
    joined: list[MapSpan] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and last.place is span.place and last.end == span.start:
            size = (last.size_bytes or 0) + (span.size_bytes or 0)
            segments = last.segments + span.segments
            joined[-1] = MapSpan(last.start, span.end, span.place, size, segments)
        else:
            joined.append(span)
    return joined


def share_in(spans: Iterable[MapSpan], *places: RecordPlace) -> float:
    """Return the share of the offsets with records that are in these places, 0 to 1."""
    total = inside = 0
    for span in spans:
        if span.place is not RecordPlace.GAP:
            total += span.end - span.start
            inside += (span.end - span.start) if span.place in places else 0
    return inside / total if total else 0.0
