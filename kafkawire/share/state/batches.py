"""Merging the batches of a share partition (Kafka: PersisterStateBatchCombiner). Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from operator import attrgetter

from kafkawire.share.persister import UNSET_OFFSET, StateBatch

Batches = tuple[StateBatch, ...]
"""Batches that ascend and do not overlap; neighbours differ in state or delivery count."""

_first = attrgetter("first")
_last = attrgetter("last")


def merge_batches(current: Batches, new: Sequence[StateBatch], start_offset: int) -> Batches:
    """Return the batches after a change, without what is below `start_offset`. Where several have
    an offset, the highest delivery count decides, then the highest state."""
    kept = _drop_below(current, start_offset)
    added = [
        batch if batch.first >= start_offset else batch._replace(first=start_offset)
        for batch in new
        if start_offset == UNSET_OFFSET or batch.last >= start_offset
    ]
    if not added:
        return kept
    # Only those near the new ones change: there may be thousands of others.
    low, high = min(map(_first, added)), max(map(_last, added))
    begin = bisect_left(kept, low - 1, key=_last)
    end = bisect_right(kept, high + 1, key=_first)
    return (*kept[:begin], *_sweep([*kept[begin:end], *added]), *kept[end:])


def _drop_below(batches: Batches, start_offset: int) -> Batches:
    if start_offset == UNSET_OFFSET or not batches or batches[0].first >= start_offset:
        return batches
    at = bisect_left(batches, start_offset, key=_last)
    kept = batches[at:]
    if kept and kept[0].first < start_offset:
        return (kept[0]._replace(first=start_offset), *kept[1:])
    return kept


def _sweep(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Return the winner of each offset of overlapping batches, as few batches as possible."""
    waiting = sorted(batches, key=_first)
    active: list[tuple[int, int, int]] = []  # those that have offset `at`, the winner first
    merged: list[StateBatch] = []
    number = at = 0
    while active or number < len(waiting):
        if not active:
            at = max(at, waiting[number].first)
        while number < len(waiting) and waiting[number].first <= at:
            batch = waiting[number]
            heappush(active, (-batch.delivery_count, -batch.state, batch.last))
            number += 1
        while active and active[0][2] < at:
            heappop(active)
        if not active:
            continue
        delivery_count, state, last = -active[0][0], -active[0][1], active[0][2]
        if number < len(waiting):
            last = min(last, waiting[number].first - 1)
        before = merged[-1] if merged else None
        if before is not None and before[1:] == (at - 1, state, delivery_count):
            merged[-1] = before._replace(last=last)
        else:
            merged.append(StateBatch(at, last, state, delivery_count))
        at = last + 1
    return merged
