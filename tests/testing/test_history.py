"""The checker of histories: it accepts a correct history, and names each violation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.exactly_once.checker import kinds
from tests.kit.history.checker import LIVE_WITHIN_S, check
from tests.kit.history.history import Event, Final, History, Kind, Result, waits_for_acks

A, B = ("a", 0), ("a", 1)


class Clock:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def send(history: History, client: str, value: str, offset: int) -> Event:
    step = history.send(client, A, value)
    history.ok(step, offset)
    return step


def commit(history: History, offset: int) -> None:
    history.ok(history.commit("m", "g", A, offset))


def ask(history: History, offset: int) -> None:
    history.ok(history.ask_committed("m", "g", A), offset)


def correct() -> History:
    """Two producers, a reader and a member of a group; a fault in between; one record refused, one
    of unknown result that is there, and one that is not."""
    history = History(Clock())
    history.began("p", [A], idempotent=True, acks_all=True)
    history.began("q", [A], acks_all=True)
    history.began("r", [A])
    history.began("m", [A], group="g")
    ask(history, -1)
    send(history, "p", "p-1", 0)
    history.fail(history.send("p", A, "p-2"), "too large")
    history.read("r", A, 0, "p-1", 3)
    history.read("m", A, 0, "p-1", 3)
    commit(history, 1)
    history.fault("kill the leader")
    history.unknown(history.send("q", A, "q-1"), "timed out")
    history.unknown(history.send("q", A, "q-2"), "timed out")
    history.unknown(history.commit("m", "g", A, 2))
    history.healed()
    send(history, "p", "p-3", 2)
    send(history, "q", "q-3", 3)
    history.read("r", A, 1, "q-1", 3)
    history.read("r", A, 2, "p-3", 4)
    history.read("m", A, 1, "q-1", 3)
    ask(history, 2)
    commit(history, 3)
    for client in ("p", "q", "r", "m"):
        history.ended(client)
    rows = [(0, "p-1", 3), (1, "q-1", 3), (2, "p-3", 4), (3, "q-3", 4)]
    history.final[A] = Final(0, 4, rows)
    return history


def test_a_correct_history_has_no_finding() -> None:
    assert check(correct()) == []


Change = Callable[[History], object]
Row = tuple[int, str, int]


def final(*rows: Row, start: int = 0, end: int | None = None) -> Change:
    """Replace the final read."""
    stop = rows[-1][0] + 1 if end is None else end
    return lambda history: history.final.update({A: Final(start, stop, list(rows))})


def acked(value: str, offset: int) -> Change:
    """Change the offset in the answer to a Produce."""

    def change(history: History) -> None:
        for number, event in enumerate(history.events):
            if event.value == value and event.result is Result.OK and event.kind is Kind.PRODUCE:
                history.events[number] = replace(event, offset=offset)

    return change


def both(*changes: Change) -> Change:
    return lambda history: [change(history) for change in changes]


def read_early(history: History) -> None:
    """A reader that has a record before it was sent."""
    read = [each for each in history.events if each.kind is Kind.READ and each.value == "p-3"]
    for each in read:
        history.events[history.events.index(each)] = replace(each, at=0.5)


P1, Q1, P3, Q3 = (0, "p-1", 3), (1, "q-1", 3), (2, "p-3", 4), (3, "q-3", 4)
VIOLATIONS: dict[str, tuple[set[str], Change]] = {
    "an acknowledged record is missing at the end": ({"lost"}, final(P1, Q1, P3)),
    "an acknowledged record is missing between others": (
        {"lost", "gap", "vanished"},
        final(P1, Q1, Q3),
    ),
    "a record acknowledged without an offset is missing": (
        {"lost"},
        both(acked("q-3", -1), final(P1, Q1, P3)),
    ),
    "two readers saw two values": (
        {"divergence"},
        lambda history: history.read("r", A, 1, "q-2", 3),
    ),
    "the final read has another value than a reader": (
        {"divergence", "duplicate", "lost", "wrong offset"},
        final(P1, Q1, (2, "p-1", 4), Q3),
    ),
    "a record that was not sent": ({"phantom"}, final(P1, Q1, P3, Q3, (4, "x-1", 4))),
    "a record of another partition": (
        {"phantom", "unread"},
        both(
            lambda history: history.unknown(history.send("q", B, "q-4")),
            final(P1, Q1, P3, Q3, (4, "q-4", 4)),
        ),
    ),
    "a refused record is there": (
        {"phantom", "reordered"},
        final(P1, Q1, P3, Q3, (4, "p-2", 4)),
    ),
    "a record is read before it is sent": ({"phantom"}, read_early),
    "a record of an idempotent producer is there twice": (
        {"duplicate"},
        final(P1, Q1, P3, Q3, (4, "p-3", 4)),
    ),
    "a record moved between two reads": (
        {"duplicate", "phantom"},
        lambda history: history.read("r", B, 7, "p-3"),
    ),
    "records of an idempotent producer are in another order": (
        {"reordered"},
        both(
            lambda history: send(history, "p", "p-4", 5),
            lambda history: send(history, "p", "p-5", 4),
            final(P1, Q1, P3, Q3, (4, "p-5", 4), (5, "p-4", 4)),
        ),
    ),
    "offsets are missing between records": (
        {"gap"},
        final(P1, Q1, P3, Q3, (5, "q-2", 4)),
    ),
    "offsets are missing at the start": ({"gap"}, final(P1, Q1, P3, Q3, start=-1)),
    "offsets are missing at the end": ({"gap"}, final(P1, Q1, P3, Q3, end=5)),
    "the final read returned an offset twice": ({"gap"}, final(P1, Q1, P3, P3, Q3)),
    "a record that was read is gone": (
        {"vanished"},
        lambda history: history.read("r", A, 4, "q-2", 4),
    ),
    "the position after what was read is refused": (
        {"vanished"},
        lambda history: history.read_refused("r", A, "offset out of range"),
    ),
    "a record is at another offset than answered": ({"wrong offset"}, acked("q-3", 9)),
    "one offset was answered for two records": (
        {"wrong offset"},
        acked("q-3", 2),
    ),
    "a committed offset went back": (
        {"commit back"},
        lambda history: ask(history, 2),
    ),
    "a committed offset is gone": ({"commit back"}, lambda history: ask(history, -1)),
    "a lower commit was accepted later": (
        {"commit back"},
        lambda history: commit(history, 1),
    ),
    "an offset is committed that was never sent": (
        {"commit back"},
        lambda history: ask(history, 4),
    ),
    "a leader epoch is less than before": (
        {"epoch back"},
        final(P1, Q1, P3, (3, "q-3", 3)),
    ),
    "one offset has two leader epochs": (
        {"epoch back"},
        final(P1, Q1, (2, "p-3", 5), (3, "q-3", 5)),
    ),
    "a partition has no final read": ({"unread"}, lambda history: history.final.clear()),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_named(name: str) -> None:
    expected, change = VIOLATIONS[name]
    history = correct()
    change(history)
    assert kinds(check(history)) == expected


def test_rules_apply_to_the_producers_that_ask_for_them() -> None:
    """Without acks=all and idempotence a record may be lost, repeated and overtaken."""
    history = History(Clock())
    history.began("p", [])
    for number in range(3):
        send(history, "p", f"p-{number}", -1)
    history.final[A] = Final(0, 3, [(0, "p-1", 0), (1, "p-0", 0), (2, "p-1", 0)])
    assert check(history) == []


def test_deleted_records_are_not_lost() -> None:
    history = correct()
    history.final[A] = Final(3, 4, [Q3])
    assert check(history) == []
    acked("p-3", -1)(history)
    assert check(history) == []


def test_offsets_of_sparse_topics_may_be_missing() -> None:
    history = correct()
    final(P1, Q1, P3, Q3, (7, "q-2", 4), end=9)(history)
    assert kinds(check(history)) == {"gap"}
    assert check(history, sparse=["a"]) == []
    final(P1, Q1, P3, end=9)(history)
    assert kinds(check(history, sparse=["a"])) == {"lost"}


def healed(*progress: str, late: float = 0.0, fault_after: float | None = None) -> History:
    """A producer, a reader and two members of a group; those named succeed after the end of a
    fault, `late` seconds later."""
    clock = Clock()
    history = History(clock)
    history.began("p", [A], idempotent=True, acks_all=True)
    history.began("r", [A])
    history.began("m", [A], group="g")
    history.began("n", [A], group="g")
    history.began("gone", [A])
    send(history, "p", "p-0", 0)
    history.ended("gone")
    history.fault("stop the leader")
    history.healed()
    if fault_after is not None:
        clock.now += fault_after
        history.fault("stop it again")
    clock.now += late
    rows = [(0, "p-0", 0)]
    for client in progress:
        if client == "p":
            send(history, "p", "p-1", 1)
            rows.append((1, "p-1", 0))
        else:
            history.read(client, A, 0, "p-0", 0)
    history.final[A] = Final(0, len(rows), rows)
    return history


def test_progress_of_every_client_is_expected_after_healing() -> None:
    assert check(healed("p", "r", "m")) == []
    assert check(healed("p", "r", "n")) == []  # the other member may own no partition
    for missing in ("p", "r", "m"):
        done = [each for each in ("p", "r", "m") if each != missing]
        (found,) = check(healed(*done))
        assert found.kind == "no progress"
        assert found.text == f"{'g' if missing == 'm' else missing} in a-0"


def test_progress_must_come_in_time() -> None:
    assert kinds(check(healed("p", "r", "m", late=LIVE_WITHIN_S))) == {"no progress"}
    assert check(healed("p", "r", "m", late=5.0), live_within_s=20.0) == []
    assert kinds(check(healed("p", "r", "m", late=21.0), live_within_s=20.0)) == {"no progress"}


def test_no_progress_is_expected_if_a_fault_follows_soon() -> None:
    assert check(healed(fault_after=5.0)) == []
    assert kinds(check(healed(fault_after=LIVE_WITHIN_S + 5))) == {"no progress"}


def test_a_client_that_works_in_one_partition_may_be_stuck_in_another() -> None:
    history = History(Clock())
    history.began("r", [A, B])
    history.healed()
    history.read("r", A, 0, "p-0")
    found = [str(each) for each in check(history) if each.kind == "no progress"]
    assert found == ["no progress: r in a-1"]


def test_waits_for_acks_are_those_between_two_of_a_partition() -> None:
    clock = Clock()
    history = History(clock)
    history.began("p", [A, B])
    for at, partition in ((10.0, A), (11.0, B), (12.0, A), (19.0, A), (20.0, A)):
        clock.now = at - 2
        history.ok(history.send("p", partition, f"p-{at}"), 0)
    assert waits_for_acks(history) == {A: 7.0, B: float("inf")}
    assert waits_for_acks(history, since=12.0, until=30.0) == {A: 10.0, B: 18.0}
    assert waits_for_acks(history, since=11.0, until=15.0) == {A: 3.0, B: 4.0}


def test_events_of_threads_are_all_kept_in_the_order_of_their_times() -> None:
    history = History()

    def work(name: str) -> None:
        history.began(name, [A])
        for number in range(200):
            history.ok(history.send(name, A, f"{name}-{number}"), number)

    threads = [threading.Thread(target=work, args=[f"p{n}"]) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    times = [each.at for each in history.events]
    assert len(times) == 4 * 401
    assert times == sorted(times)
    begun = [each.step for each in history.events if each.result is Result.INVOKE]
    assert len(set(begun)) == 800


def test_a_saved_history_has_a_line_for_each_event_and_final_read(tmp_path: Path) -> None:
    history = correct()
    history.save(tmp_path / "history")
    lines = [json.loads(line) for line in (tmp_path / "history").read_text().splitlines()]
    assert len(lines) == len(history.events) + 1
    assert lines[-1][:4] == ["final", ["a", 0], 0, 4]
    assert [line[2] for line in lines[:3]] == ["began"] * 3
