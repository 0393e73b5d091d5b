"""The checker of transactional histories: it accepts a sound history, and names each violation."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from tests.kit.exactly_once.batches import Batch, build, committed, read
from tests.kit.exactly_once.checker import check, kinds
from tests.kit.exactly_once.history import Final, History, Journal, Outcome, replay

A, B = ("a", 0), ("b", 0)
KEY = ("g", "a", 0)


def sound() -> History:
    """A transaction over two partitions that copies input of a group, an aborted one, and one whose
    client does not know that it was committed."""
    history = History()
    history.started("p1", "p", 7, 0, 1.0)
    history.began("one", "p1")
    history.sent("one", *A, "one/0", 2.0)
    history.acked("one/0", 0, 2.1)
    history.sent("one", *B, "one/1", 2.2)
    history.acked("one/1", 0, 2.3)
    history.committing("one", 3.0)
    history.ended("one", "committed", 3.5)
    history.polled("r", *A, 0, 2, [(0, "one/0")], 4.0, 4.1, 2, 2)
    history.began("two", "p1")
    history.sent("two", *A, "two/0", 5.0)
    history.acked("two/0", 2, 5.1)
    history.ended("two", "aborted", 5.5)
    history.started("q1", "q", 8, 0, 6.0)
    history.began("three", "q1")
    history.consumed("three", "g", *A, 0)
    history.sent("three", *B, "three/0", 6.2)
    history.acked("three/0", 2, 6.3)
    history.offset("three", "g", *A, 1)
    history.committing("three", 7.0)
    history.ended("three", "unknown", 7.5)
    history.read_offset("g", *A, 1, True, 8.0, 8.1)
    history.polled("r", *B, 0, 4, [(0, "one/1"), (2, "three/0")], 9.0, 9.1, 4, 4)
    history.final[A] = Final(0, 4, 4, [(0, "one/0")], [(0, "one/0"), (2, "two/0")])
    rows = [(0, "one/1"), (2, "three/0")]
    history.final[B] = Final(0, 4, 4, rows, rows)
    history.final_offsets[KEY] = 1
    return history


def test_a_sound_history_has_no_finding() -> None:
    assert check(sound()) == []


Change = Callable[[History], object]


def _final(history: History, partition: tuple[str, int], *rows: tuple[int, str]) -> None:
    was = history.final[partition]
    history.final[partition] = Final(was.start, was.stable, was.high, list(rows), was.written)


def _reordered(history: History) -> None:
    history.began("four", "p1")
    history.sent("four", *B, "four/0", 9.0)
    history.acked("four/0", 1, 9.1)
    history.committing("four", 9.2)
    history.ended("four", "committed", 9.3)
    history.writes["one/1"].offset = 3
    _final(history, B, (1, "four/0"), (2, "three/0"), (3, "one/1"))


def _twice(history: History) -> None:
    history.consumed("one", "g", *A, 0)


def _lost(history: History) -> None:
    _final(history, A)
    _final(history, B, (2, "three/0"))


def _stale(history: History) -> None:
    history.attempts["three"].outcome = Outcome.COMMITTED
    history.read_offset("g", *A, -1, True, 9.5, 9.6)


def _zombie(history: History) -> None:
    history.started("p2", "p", 7, 5, 2.95)


BREAKS: list[tuple[str, Change]] = [
    ("aborted read", lambda h: h.polled("r", *A, 2, 4, [(2, "two/0")], 9.0, 9.1)),
    ("aborted read", lambda h: _final(h, A, (0, "one/0"), (2, "two/0"))),
    ("early read", lambda h: h.polled("r", *A, 0, 1, [(0, "one/0")], 2.2, 2.4)),
    ("lost", _lost),
    ("torn", lambda h: _final(h, B, (2, "three/0"))),
    ("duplicate", lambda h: h.final[A].written.append((3, "one/0"))),
    ("reordered", _reordered),
    ("inconsistent", lambda h: h.polled("s", *A, 0, 1, [(0, "one/1")], 9.0, 9.1)),
    ("inconsistent", lambda h: setattr(h.writes["two/0"], "offset", 0)),
    ("skipped", lambda h: h.polled("s", *A, 0, 2, [], 9.0, 9.1)),
    ("past stable", lambda h: h.polled("s", *B, 2, 4, [(2, "three/0")], 9.0, 9.1, 2, 4)),
    ("stable back", lambda h: h.polled("s", *B, 0, 0, [], 10.0, 10.1, 2, 4)),
    ("stable back", lambda h: h.polled("s", *B, 0, 0, [], 10.0, 10.1, 4, 3)),
    ("early offset", lambda h: h.read_offset("g", *A, 1, False, 6.5, 6.6)),
    ("early offset", lambda h: h.read_offset("g", *A, 2, False, 9.5, 9.6)),
    ("stale offset", _stale),
    ("offsets out of step", lambda h: h.final_offsets.update({KEY: -1})),
    ("processed twice", _twice),
    ("not processed", lambda h: h.attempts["three"].inputs.clear()),
    ("zombie", _zombie),
    ("hanging", lambda h: h.hanging.append("p is PrepareCommit")),
    ("hanging", lambda h: h.final.update({A: Final(0, 2, 4, [(0, "one/0")], [])})),
    ("damaged", lambda h: h.final[A].damaged.append(2)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), BREAKS)
def test_each_violation_is_named(kind: str, change: Change) -> None:
    history = sound()
    change(history)
    assert kind in kinds(check(history))


def test_unacknowledged_writes_may_be_there_or_not() -> None:
    history = sound()
    history.began("four", "p1")
    history.sent("four", *A, "four/0", 9.0)
    history.sent("four", *B, "four/1", 9.0)
    history.acked("four/1", 4, 9.1)
    history.ended("four", "unknown", 9.3)
    assert check(history) == []


def test_writes_below_the_log_start_need_not_be_there() -> None:
    history = sound()
    history.final[A] = Final(3, 4, 4, [], [])
    assert check(history) == []


def test_a_journal_repeats_the_calls_up_to_the_torn_line() -> None:
    out = io.StringIO()
    journal = Journal(out)
    journal.started("p1", "p", 7, 0, 1.0)
    journal.began("one", "p1")
    journal.sent("one", "a", 0, "one/0", 2.0)
    lines = out.getvalue().splitlines(keepends=True)
    history = History()
    replay(history, [*lines[:2], lines[2][:-5]])
    assert set(history.attempts) == {"one"}
    assert not history.writes


def test_batches_can_be_read_and_filtered() -> None:
    raw = build(["x", "y"], 7, 1, 0, 1_000)
    (batch,) = read(raw + raw[:30])
    assert batch == Batch(0, 1, 7, True, None, [(0, "x"), (1, "y")])
    later = Batch(3, 3, 7, True, None, [(3, "z")])
    abort = Batch(2, 2, 7, False, 0, [])
    assert committed([batch, abort, later], [(7, 0)]) == [(3, "z")]
    assert committed([batch, later], [(7, 0)]) == []
    assert committed([batch, later], [(8, 0)]) == [*batch.rows, *later.rows]
