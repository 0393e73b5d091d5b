"""Split the ranges to read into tasks of about the same size. Pure.

The same parts always give the same tasks. Order is kept: by part, and within a part by
offset; every offset is in exactly one task.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from kafkawire.reading.model.source import Piece, Task, TaskPart

TASK_BYTES = 64 << 20
"""Bytes per task: a tenth to half a second of work, many times the cost of starting a task, and a
small loss if one fails or a machine is slow."""
MAX_PARTS = 10_000
"""Maximum number of parts per task: each has an account, and its share of the task's
description."""
SNAP = 8
"""A cut is moved to the end of a segment if that is within this share of a task; otherwise two
tasks would read that segment's index."""


def plan_tasks(
    parts: Sequence[TaskPart], *, task_bytes: int = TASK_BYTES, min_tasks: int = 1
) -> list[Task]:
    """Tasks of at most about `task_bytes`, and at least `min_tasks` where there are as many
    offsets.

    A part is cut by bytes, within a piece in proportion to its offsets, so a cut may be in the
    middle of a batch; the reader finds the position by the index. Small parts share a task. Empty
    parts are left out. Raises ValueError for bounds below 1.
    """
    if task_bytes < 1 or min_tasks < 1:
        raise ValueError(f"task_bytes={task_bytes} and min_tasks={min_tasks} must be at least 1")
    wanted = [part for part in parts if part.range.base < part.range.end]
    total = sum(max(1, part.size_bytes) for part in wanted)
    target = max(1, min(task_bytes, -(-total // min_tasks)))
    tasks = _pack_tasks(wanted, target)
    while len(tasks) < min_tasks and target > 1:
        target //= 2
        tasks = _pack_tasks(wanted, target)
    return tasks


def _pack_tasks(parts: Sequence[TaskPart], target: int) -> list[Task]:
    tasks: list[Task] = []
    packed: list[TaskPart] = []
    size = 0
    for part in parts:
        for share in split_part(part, target):
            share_bytes = max(1, share.size_bytes)
            if packed and (size + share_bytes > target or len(packed) == MAX_PARTS):
                tasks.append(Task(tuple(packed)))
                packed, size = [], 0
            packed.append(share)
            size += share_bytes
    if packed:
        tasks.append(Task(tuple(packed)))
    return tasks


class _Run(NamedTuple):
    """Consecutive offsets: of one piece, or between two, without a piece."""

    base: int
    end: int
    size_bytes: int
    piece: Piece | None


def split_part(part: TaskPart, target: int) -> Iterator[TaskPart]:
    """Split a part into adjacent ascending shares of about the same bytes, at most about
    `target`."""
    base, end = part.range.base, part.range.end
    count = min(-(-max(1, part.size_bytes) // target), end - base)
    if count <= 1:
        yield part
        return
    runs = _runs(part)
    first = 0
    for left, right in _shares(runs, count):
        while runs[first].end <= left:
            first += 1
        pieces: list[Piece] = []
        size, at = 0, first
        while at < len(runs) and runs[at].base < right:
            run = runs[at]
            begin, stop = max(run.base, left), min(run.end, right)
            size += run.size_bytes * (stop - begin) // (run.end - run.base)
            if run.piece is not None:
                pieces.append(run.piece._replace(base=begin, end=stop))
            at += 1
        yield TaskPart(part.range._replace(base=left, end=right), tuple(pieces), size)


def _runs(part: TaskPart) -> list[_Run]:
    """Return all offsets of a part. Bytes without a piece are distributed evenly."""
    base, end = part.range.base, part.range.end
    sizes = [piece.size_bytes for piece in part.pieces]
    bare = end - base - sum(piece.end - piece.base for piece in part.pieces)
    rest = max(0, part.size_bytes - sum(sizes))
    runs: list[_Run] = []
    at = base
    for piece, size in zip(part.pieces, sizes, strict=True):
        if at < piece.base:
            runs.append(_Run(at, piece.base, rest * (piece.base - at) // bare, None))
        runs.append(_Run(piece.base, piece.end, size, piece))
        at = piece.end
    if at < end:
        runs.append(_Run(at, end, rest * (end - at) // bare, None))
    return runs


def _shares(runs: Sequence[_Run], count: int) -> Iterator[tuple[int, int]]:
    """Return `count` ranges of about the same bytes, none empty."""
    ends = list(accumulate(run.size_bytes for run in runs))
    total = max(1, ends[-1])
    left, end = runs[0].base, runs[-1].end
    for number in range(1, count):
        right = _offset_at(runs, ends, total * number // count, total // count // SNAP)
        right = min(max(right, left + 1), end - (count - number))
        yield left, right
        left = right
    yield left, end


def _offset_at(runs: Sequence[_Run], ends: Sequence[int], size: int, near: int) -> int:
    """Return the offset before which there are `size` bytes, or a boundary of runs at most `near`
    away."""
    at = min(bisect_left(ends, size), len(runs) - 1)
    run = runs[at]
    before = size - (ends[at] - run.size_bytes)
    if ends[at] - size <= near:
        return run.end
    if before <= near:
        return run.base
    return run.base + before * (run.end - run.base) // max(1, run.size_bytes)
