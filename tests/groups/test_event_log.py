"""Log lines of groups: their rate is bounded, repeated trouble is one line."""

from __future__ import annotations

import logging

import pytest

from kafkawire.groups import event_log
from kafkawire.groups.event_log import BURST, MANY_REBALANCES, STUCK_EVERY_S, WINDOW_S
from kafkawire.groups.model.events import (
    Event,
    Eviction,
    GroupEmpty,
    GroupStuck,
    MemberEvicted,
    MemberJoined,
    RebalanceCompleted,
    RebalanceStarted,
)
from kafkawire.groups.model.member import Member

MEMBER = Member("m", None, "c", "10.0.0.1", 60_000, 10_000, ())
STARTED = RebalanceStarted("member m joined", 3, 2)


class Bench:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.log = event_log.GroupEventLog(lambda: self.now)
        self._caplog = caplog

    def report(self, *events: Event, group: str = "g") -> list[str]:
        """Report events and return the lines written."""
        self._caplog.clear()
        self.log.report(group, events)
        return [f"{each.levelname} {each.getMessage()}" for each in self._caplog.records]


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    caplog.set_level(logging.INFO, logger=event_log.__name__)
    return Bench(caplog)


def test_events_are_logged_and_counted(bench: Bench) -> None:
    evicted = MemberEvicted(MEMBER, Eviction.SESSION_TIMEOUT, 10_000)
    lines = bench.report(MemberJoined(MEMBER), evicted, STARTED, GroupEmpty(4))
    assert lines[0] == "INFO group g: member m (client c at 10.0.0.1) joined"
    assert lines[1].startswith("WARNING group g: member m (client c at 10.0.0.1) was removed")
    assert lines[2].startswith("INFO group g: rebalance started after generation 3")
    assert lines[3].startswith("INFO group g: has no members any more")
    bench.report(RebalanceCompleted(4, 2, "range", 2500))
    assert bench.log.rebalances == 1
    assert bench.log.evictions == {"session_timeout": 1}
    assert bench.log.durations.total == 2.5


def test_rate_of_lines_is_bounded(bench: Bench) -> None:
    lines = bench.report(*[MemberJoined(MEMBER)] * (BURST + 50))
    assert len(lines) == BURST
    bench.now += 1.0
    lines = bench.report(MemberJoined(MEMBER), MemberJoined(MEMBER), MemberJoined(MEMBER))
    assert lines[0] == "WARNING 50 events of groups were not logged: too many in a short time"
    assert len(lines) == 3


def test_group_that_rebalances_again_and_again_is_reported_once(bench: Bench) -> None:
    warnings = []
    for _ in range(5 * MANY_REBALANCES):
        bench.now += 2.0
        warnings += [line for line in bench.report(STARTED) if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert warnings[0].startswith("WARNING group g: 10 rebalances within 18 s")
    assert "member m joined" in warnings[0]
    bench.now += WINDOW_S
    for _ in range(MANY_REBALANCES):
        warnings += [line for line in bench.report(STARTED) if line.startswith("WARNING")]
    assert len(warnings) == 2
    assert not [line for line in bench.report(STARTED, group="h") if line.startswith("WARNING")]


def test_stuck_group_is_reported_once_in_a_while(bench: Bench) -> None:
    stuck = GroupStuck("no member has rejoined", 60_000)
    assert bench.report(stuck) == [
        "WARNING group g has been rebalancing for 60.0 s: no member has rejoined"
    ]
    bench.now += STUCK_EVERY_S - 1
    assert bench.report(stuck) == []
    bench.now += 1
    assert len(bench.report(stuck)) == 1


def test_number_of_watched_groups_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_GROUPS", 3)
    for n in range(10):
        bench.report(STARTED, GroupStuck("no member has rejoined", 1), group=f"g{n}")
    assert len(bench.log._windows) == 3
    assert len(bench.log._stuck) == 3
