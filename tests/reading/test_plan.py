"""Tasks: every offset in exactly one, in order, of about the requested number of bytes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.model.source import PartitionRange, Piece, Task, TaskPart
from kafkawire.reading.plan import MAX_PARTS, plan_tasks, split_part


def piece(base: int, end: int, size: int, key: str = "k") -> Piece:
    return Piece(0, key, 64, size, size + 64, 28, 0, base, base, end, end)


def part(partition: int, *pieces: Piece, base: int = 0, end: int = 0, bare: int = 0) -> TaskPart:
    """`bare`: bytes of offsets in no piece."""
    wanted = PartitionRange("t", partition, base, end or pieces[-1].end)
    return TaskPart(wanted, pieces, sum(each.size_bytes for each in pieces) + bare)


@st.composite
def parts(draw: st.DrawFn) -> list[TaskPart]:
    found = []
    for partition in range(draw(st.integers(0, 6))):
        at = base = draw(st.integers(0, 50))
        pieces: list[Piece] = []
        bare = 0
        for _ in range(draw(st.integers(0, 5))):
            hole = draw(st.sampled_from([0, 0, 7]))
            bare += 10 * hole
            at += hole
            count = draw(st.integers(1, 200))
            pieces.append(piece(at, at + count, draw(st.integers(0, 5000)), f"k{at}"))
            at += count
        tail = draw(st.sampled_from([0, 0, 9]))
        end, size = at + tail, sum(each.size_bytes for each in pieces)
        wanted = PartitionRange("t", partition, base, end)
        found.append(TaskPart(wanted, tuple(pieces), size + bare + 10 * tail))
    return found


def offsets(tasks: list[Task]) -> list[tuple[int, int]]:
    """(partition, offset) of everything, in the order it would be read."""
    return [
        (share.range.partition, offset)
        for task in tasks
        for share in task.parts
        for offset in range(share.range.base, share.range.end)
    ]


def held(tasks: list[Task]) -> list[tuple[int, str, int]]:
    """(partition, key, offset) of what pieces hold."""
    return [
        (share.range.partition, each.key, offset)
        for task in tasks
        for share in task.parts
        for each in share.pieces
        for offset in range(each.base, each.end)
    ]


@given(parts(), st.integers(1, 6000), st.integers(1, 30))
def test_every_offset_is_in_exactly_one_task(
    given_parts: list[TaskPart], size: int, least: int
) -> None:
    whole = [Task((each,)) for each in given_parts]
    tasks = plan_tasks(given_parts, task_bytes=size, min_tasks=least)
    assert offsets(tasks) == offsets(whole)
    assert held(tasks) == held(whole)
    for task in tasks:
        assert task.parts
        for share in task.parts:
            assert share.range.base < share.range.end
            for each in share.pieces:
                assert share.range.base <= each.base < each.end <= share.range.end
    assert tasks == plan_tasks(given_parts, task_bytes=size, min_tasks=least)
    assert pickle.loads(pickle.dumps(tasks)) == tasks


@given(parts(), st.integers(1, 6000), st.integers(1, 30))
def test_tasks_have_about_requested_size(
    given_parts: list[TaskPart], size: int, least: int
) -> None:
    tasks = plan_tasks(given_parts, task_bytes=size, min_tasks=least)
    densest = max(
        (e.size_bytes / (e.end - e.base) for p in given_parts for e in p.pieces), default=0
    )
    for task in tasks:
        # Shares are about even: tolerances are an eighth for each moved cut, and a batch for each
        # side.
        assert task.size_bytes <= size * 1.25 + 2 * max(densest, 10) + 1 or len(task.parts) == 1
        if len(task.parts) > 1:
            assert task.size_bytes <= size
    assert sum(task.size_bytes for task in tasks) <= sum(p.size_bytes for p in given_parts)
    count = len(offsets(tasks))
    heavy = all(e.length >= e.end - e.base for p in given_parts for e in p.pieces)
    if heavy:  # at least a byte for each offset: they need not stay together
        assert len(tasks) >= min(least, count)


def test_small_parts_share_a_task_and_large_ones_are_split() -> None:
    small = [part(n, piece(0, 10, 100)) for n in range(1000)]
    assert [len(task.parts) for task in plan_tasks(small, task_bytes=10_000)] == [100] * 10
    large = part(0, piece(0, 1000, 1_000_000))
    tasks = plan_tasks([large], task_bytes=100_000)
    assert [task.parts[0].range[2:] for task in tasks] == [
        (n, n + 100) for n in range(0, 1000, 100)
    ]
    assert {task.size_bytes for task in tasks} == {100_000}
    assert len(plan_tasks([large], min_tasks=7)) == 7


def test_cuts_move_to_ends_of_segments() -> None:
    """Otherwise two tasks read the same index."""
    pieces = [piece(n * 100, n * 100 + 100, 64_000, f"s{n}") for n in range(10)]
    tasks = plan_tasks([part(0, *pieces)], task_bytes=66_000)
    assert [[each.key for each in task.parts[0].pieces] for task in tasks] == [
        [f"s{n}"] for n in range(10)
    ]


def test_number_of_parts_of_task_is_bounded() -> None:
    empty = [part(n, piece(0, 1, 0)) for n in range(MAX_PARTS + 5)]
    assert [len(task.parts) for task in plan_tasks(empty)] == [MAX_PARTS, 5]


def test_offsets_without_piece_count() -> None:
    bare = TaskPart(PartitionRange("t", 0, 0, 1000), (), 100_000)
    assert [share.range[2:] for share in split_part(bare, 25_000)] == [
        (0, 250), (250, 500), (500, 750), (750, 1000),
    ]  # fmt: skip
    tail = part(0, piece(0, 100, 1000), end=200, bare=9000)
    assert all(4900 <= share.size_bytes <= 5100 for share in split_part(tail, 5000))


def test_one_offset_is_one_task_and_empty_range_is_none() -> None:
    one = part(0, piece(5, 6, 1 << 30), base=5)
    assert [task.parts for task in plan_tasks([one], task_bytes=10, min_tasks=10)] == [(one,)]
    assert plan_tasks([part(0, base=7, end=7)]) == []
    assert plan_tasks([]) == []


def test_bounds_below_one_are_refused() -> None:
    for size, least in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            plan_tasks([], task_bytes=size, min_tasks=least)
