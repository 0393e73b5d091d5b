"""Static members (KIP-345): a restart within the session costs no rebalance."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.sync import check_commit
from kafkawire.groups.model.decision import CancelTimer, session
from kafkawire.groups.model.states import GroupState
from tests.kit.groups.script import Script, answer, script, set_timer

FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def pair(**changed: int) -> Script:
    """Static members `i` (the leader, i-1) and `j` (j-2), stable in generation 1."""
    steps = script(**changed)
    steps.join(token=1, instance="i", fresh="1").join(token=2, instance="j", fresh="2")
    steps.at(3000).timer("join").at(6000).timer("join")
    steps.sync("j-2", token=3, generation=1, instance="j")
    steps.sync("i-1", token=4, generation=1, assign={"i-1": b"I", "j-2": b"J"}, instance="i")
    return steps.expect_state(GroupState.STABLE, 1).forget()


def test_static_member_gets_id_without_second_join() -> None:
    steps = script().join(token=1, instance="i", fresh="1")
    assert list(steps.group.members) == ["i-1"]
    steps.expect_state(GroupState.PREPARING).expect_answers()


def test_restarted_static_follower_starts_no_round() -> None:
    steps = pair().at(7000).join(token=5, instance="j", fresh="3")
    steps.expect(
        CancelTimer(session("j-2")),
        set_timer(session("j-3"), 17_000),
        answer(
            5, generation_id=1, member_id="j-3", leader="i-1", members=[], skip_assignment=False
        ),
    )
    steps.expect_state(GroupState.STABLE, 1)
    value = steps.records[-1].value
    assert value is not None
    assert [(m.member_id, m.group_instance_id, m.assignment) for m in value.members] == [
        ("i-1", "i", b"I"),
        ("j-3", "j", b"J"),
    ]
    steps.sync("j-3", token=6, generation=1, instance="j").expect(answer(6, assignment=b"J"))


def test_old_member_id_is_fenced_after_restart() -> None:
    steps = pair().join(token=5, instance="j", fresh="3").forget()
    steps.heartbeat("j-2", token=6, generation=1, instance="j").expect(answer(6, FENCED))
    steps.sync("j-2", token=7, generation=1, instance="j").expect(answer(7, FENCED))
    steps.join("j-2", token=8, instance="j").expect(answer(8, FENCED, member_id="j-2"))
    steps.leave(("j-2", "j"), token=9).forget()
    (left,) = steps.bodies(9)
    assert left.members[0].error_code == FENCED
    assert check_commit(steps.group, "j-2", "j", 1) is FENCED
    steps.heartbeat("j-2", token=10, generation=1).expect(answer(10, UNKNOWN))


@pytest.mark.parametrize("version", [5, 8, 9])
def test_restarted_static_leader_does_not_assign_again(version: int) -> None:
    steps = pair().join(token=5, instance="i", fresh="3", version=version)
    steps.expect_state(GroupState.STABLE, 1)
    assert steps.group.leader == "i-3"
    (body,) = steps.bodies(5)
    if version >= 9:
        assert (body.leader, body.skip_assignment) == ("i-3", True)
        assert [m.member_id for m in body.members] == ["i-3", "j-2"]
    else:
        assert (body.leader, body.skip_assignment) == ("i-1", False)
        assert body.members == []


def test_restart_with_changed_protocol_starts_round() -> None:
    steps = pair().join("i-1", token=5, instance="i", protocols=["range", "sticky"])
    steps.join("j-2", token=6, instance="j", protocols=["range", "sticky"]).forget()
    steps.sync("j-2", token=7, generation=2).sync("i-1", token=8, generation=2).forget()
    steps.expect_state(GroupState.STABLE, 2)
    steps.join(token=9, instance="j", fresh="4", protocols=["sticky"]).expect_answers()
    steps.expect_state(GroupState.PREPARING, 2)
    steps.join("i-1", token=10, instance="i", protocols=["range", "sticky"])
    steps.expect_answers(
        answer(10, generation_id=3, protocol_name="sticky"), answer(9, generation_id=3)
    )


def test_static_restart_during_sync_starts_round_again() -> None:
    steps = pair().join("i-1", token=5, instance="i").join("j-2", token=6, instance="j")
    steps.sync("j-2", token=7, generation=2).forget().expect_state(GroupState.COMPLETING)
    steps.join(token=8, instance="j", fresh="3")
    steps.expect_answers(answer(7, FENCED))
    steps.expect_state(GroupState.PREPARING, 2)
    steps.sync("i-1", token=9, generation=2).expect(answer(9, ErrorCode.REBALANCE_IN_PROGRESS))


def test_static_restart_fences_parked_join() -> None:
    steps = pair().join("j-2", token=5, instance="j", protocols=[("range", b"x")])
    steps.expect_state(GroupState.PREPARING).forget()
    steps.join(token=6, instance="j", fresh="3")
    steps.expect_answers(answer(5, FENCED, member_id="j-2"))
    steps.join("i-1", token=7, instance="i").expect_answers(
        answer(7, generation_id=2), answer(6, generation_id=2, member_id="j-3")
    )


def test_static_member_missing_round_stays_until_session_timeout() -> None:
    steps = pair().at(10_000).join("i-1", token=5, instance="i", rebalance_ms=4000)
    steps.forget().at(11_000).heartbeat("j-2", token=6, generation=1, instance="j").forget()
    steps.at(70_000).timer("join").expect_answers(answer(5, generation_id=2))
    assert list(steps.group.members) == ["i-1", "j-2"]
    assert steps.timers[session("j-2")] == 80_000
    steps.sync("i-1", token=7, generation=2, assign={"i-1": b"I", "j-2": b"J"}).forget()
    steps.at(80_000).session_due("j-2").expect_state(GroupState.PREPARING)
    assert list(steps.group.members) == ["i-1"]


def test_round_with_only_absent_static_members_stays_open() -> None:
    steps = pair().at(7000).join("j-2", token=5, instance="j", protocols=[("range", b"x")])
    steps.at(8000).leave(("j-2", "j"), token=6).forget()
    assert list(steps.group.members) == ["i-1"]
    steps.at(67_000).timer("join").expect(CancelTimer("join"), set_timer("join", 127_000))
    steps.expect_state(GroupState.PREPARING, 1)
    steps.session_due("i-1").expect_state(GroupState.EMPTY, 2)


def test_tools_remove_static_members_by_instance_id() -> None:
    steps = pair().leave(("", "j"), ("", "nobody"), token=5)
    (left,) = steps.bodies(5)
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in left.members] == [
        ("", "j", 0),
        ("", "nobody", UNKNOWN),
    ]
    assert list(steps.group.static) == ["i"]
    steps.expect_state(GroupState.PREPARING)


def test_restarted_unsynced_static_member_is_still_awaited() -> None:
    steps = script()
    steps.join(token=1, instance="i", fresh="1").join(token=2, instance="j", fresh="2")
    steps.at(3000).timer("join").at(6000).timer("join")
    steps.sync("i-1", token=3, generation=1).expect_state(GroupState.STABLE).forget()
    steps.join(token=4, instance="j", fresh="3").forget()
    assert steps.group.unsynced == {"j-3"}
    steps.sync("j-3", token=5, generation=1).expect_answers(answer(5))
    assert "sync" not in steps.timers


def test_unknown_instance_id_is_unknown_member() -> None:
    steps = pair()
    steps.heartbeat("i-1", token=5, generation=1, instance="x").expect(answer(5, UNKNOWN))
    steps.join("x-1", token=6, instance="x").expect(answer(6, UNKNOWN, member_id="x-1"))
