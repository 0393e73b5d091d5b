"""Events of a group: what a decision says about who came, who went and why.

Covers: kafkawire.groups.model.events.
"""

from __future__ import annotations

from kafkawire.groups.model.decision import JOIN, SYNC
from kafkawire.log_lines import MAX_SHOWN, shorten_for_log
from tests.kit.groups.script import Script, script, stable


def events(steps: Script) -> list[str]:
    """The events of the last decision."""
    return [str(event) for event in steps.decision.events]


def two() -> Script:
    """Members a-a (the leader) and b-b, stable in generation 1, at the time 0."""
    return stable("a", "b")


def test_first_rebalance_of_a_group() -> None:
    steps = script()
    steps.join("", token=1, version=3, client="a", fresh="a")
    assert events(steps) == [
        "member a-a (client a at 127.0.0.1) joined",
        "rebalance started after generation 0 with 1 member: member a-a joined",
    ]
    steps.join("", token=2, version=3, client="b", fresh="b", instance="i")
    assert events(steps) == ["member i-b (client b at 127.0.0.1, instance i) joined"]
    steps.at(3000).timer(JOIN)
    if JOIN in steps.timers:  # a member joined during the delay
        steps.at(steps.timers[JOIN]).timer(JOIN)
    assert events(steps) == []
    steps.at(steps.now_ms + 1500).sync("a-a", token=3, generation=1, assign={"a-a": b"x"})
    took_s = steps.now_ms / 1000
    assert events(steps) == [
        f"rebalance completed in {took_s:.1f} s, generation 1, 2 members, protocol range"
    ]


def test_member_leaves_and_the_group_becomes_empty() -> None:
    steps = two()
    steps.leave("b-b", token=9)
    assert events(steps) == [
        "member b-b (client b at 127.0.0.1) left",
        "rebalance started after generation 1 with 1 member: 1 member left",
    ]
    steps.leave("a-a", token=10)
    found = events(steps)
    assert found[0] == "member a-a (client a at 127.0.0.1) left"
    assert found[-1].startswith("has no members any more, generation 2")
    assert len(found) == 2, "a rebalance of no members is none"


def test_member_without_heartbeat_is_evicted() -> None:
    steps = two()
    steps.at(10_000 + steps.now_ms).session_due("b-b")
    assert events(steps) == [
        "member b-b (client b at 127.0.0.1) was removed: no heartbeat within its session timeout "
        "of 10.0 s: its process has ended or is blocked",
        "rebalance started after generation 1 with 1 member: the session of member b-b timed out",
    ]


def test_member_that_does_not_rejoin_is_evicted() -> None:
    steps = two()
    steps.join("a-a", token=9)
    assert events(steps) == [
        "rebalance started after generation 1 with 2 members: leader a-a rejoined"
    ]
    steps.at(60_000 + steps.now_ms).timer(JOIN)
    (line,) = events(steps)
    assert line.startswith("member b-b (client b at 127.0.0.1) was removed: it did not rejoin ")
    assert "rebalance timeout of 60.0 s" in line


def test_member_that_does_not_request_its_assignment_is_evicted() -> None:
    steps = two()
    steps.join("a-a", token=9).join("b-b", token=10)
    steps.sync("a-a", token=11, generation=2, assign={})
    steps.at(60_000 + steps.now_ms).timer(SYNC)
    found = events(steps)
    assert "it did not request its assignment within 60.0 s after it had joined" in found[0]
    assert found[1].endswith("1 member did not request an assignment")


def test_rebalance_that_begins_again_for_too_long_is_stuck() -> None:
    steps = two()
    steps.join("a-a", token=9).join("b-b", token=10)  # generation 2, and no assignment
    steps.join("", token=11, version=3, client="c", fresh="c")
    assert events(steps)[1] == (
        "rebalance starts again after generation 2 with 3 members: member c-c joined"
    )
    steps.join("a-a", token=12).join("b-b", token=13)
    steps.at(60_001 + steps.now_ms).join("", token=14, version=3, client="d", fresh="d")
    assert events(steps)[-1] == (
        "has been rebalancing for 60.0 s: longer than its rebalance timeout of 60.0 s, and it "
        "begins again because member d-d joined"
    )


def test_group_of_static_members_waits_for_them() -> None:
    steps = script()
    steps.join("", token=1, client="a", fresh="a", instance="i")
    steps.at(3000).timer(JOIN)
    steps.sync("i-a", token=2, generation=1, assign={}, instance="i")
    steps.join("", token=3, client="a", fresh="b", instance="i")
    assert events(steps) == ["member i-b (client a at 127.0.0.1, instance i) replaces member i-a"]


def test_texts_of_clients_are_cut_and_in_one_line() -> None:
    assert shorten_for_log("plain") == "plain"
    assert shorten_for_log("") == "''"
    assert shorten_for_log("two\nlines") == "'two\\nlines'"
    assert len(shorten_for_log("x" * 9000)) == MAX_SHOWN + 3
