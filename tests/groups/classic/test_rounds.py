"""Rebalance rounds of a classic group: which members are waited for, how long, who is dropped, when
the next round begins."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.decision import CancelTimer, session
from kafkawire.groups.model.states import GroupState
from tests.kit.groups.script import answer, completing, preparing, script, set_timer, stable

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS


def test_two_new_members_reach_stable() -> None:
    steps = script()
    steps.join(token=1, client="a", fresh="1").expect(
        set_timer(session("a-1"), 10_000),
        answer(1, ErrorCode.MEMBER_ID_REQUIRED, member_id="a-1", generation_id=-1),
    )
    steps.at(10).join("a-1", token=2, client="a", protocols=[("range", b"A")]).expect(
        set_timer(session("a-1"), 300_010),
        CancelTimer("sync"),
        set_timer("join", 3010),
    )
    steps.expect_state(GroupState.PREPARING, 0)
    steps.at(20).join(token=3, client="b", fresh="2").forget()
    steps.at(30).join("b-2", token=4, client="b", protocols=[("range", b"B")]).expect(
        set_timer(session("b-2"), 300_030)
    )
    steps.at(3010).timer("join").expect(set_timer("join", 6010))  # b joined: wait again
    steps.at(6010).timer("join").expect(
        CancelTimer("join"),
        answer(
            2,
            generation_id=1,
            leader="a-1",
            member_id="a-1",
            protocol_type="consumer",
            protocol_name="range",
        ),
        set_timer(session("a-1"), 16_010),
        answer(4, generation_id=1, leader="a-1", member_id="b-2", members=[]),
        set_timer(session("b-2"), 16_010),
        set_timer("sync", 66_010),
    )
    steps.expect_state(GroupState.COMPLETING, 1)
    steps.at(6020).sync("b-2", token=5, generation=1).expect()
    steps.heartbeat("b-2", token=6, generation=1).expect(
        set_timer(session("b-2"), 16_020), answer(6)
    )
    steps.at(6030).sync("a-1", token=7, generation=1, assign={"a-1": b"p0", "b-2": b"p1"})
    steps.expect(
        CancelTimer("sync"),
        answer(7, assignment=b"p0", protocol_name="range", protocol_type="consumer"),
        set_timer(session("a-1"), 16_030),
        answer(5, assignment=b"p1"),
        set_timer(session("b-2"), 16_030),
    )
    steps.expect_state(GroupState.STABLE, 1).expect_timers(a_1=16_030, b_2=16_030).done()
    value = steps.records[-1].value
    assert value is not None
    assert [(m.member_id, m.subscription, m.assignment) for m in value.members] == [
        ("a-1", b"A", b"p0"),
        ("b-2", b"B", b"p1"),
    ]


def test_leader_receives_metadata_of_all_members() -> None:
    steps = script()
    steps.join(token=1, client="a", fresh="1", version=3, protocols=[("range", b"A")])
    steps.join(token=2, client="b", fresh="2", version=3, protocols=[("range", b"B")])
    steps.at(3000).timer("join").at(6000).timer("join")
    (led,) = steps.bodies(1)
    heard = [(m.member_id, m.metadata) for m in led.members]
    assert heard == [("a-1", b"A"), ("b-2", b"B")]


def test_initial_delay_is_bounded_by_rebalance_timeout() -> None:
    steps = script().join(token=1, client="m1", fresh="1", version=3, rebalance_ms=5000)
    steps.at(2900).join(token=2, client="m2", fresh="2", version=3, rebalance_ms=5000)
    steps.at(3000).timer("join").forget()
    assert steps.timers["join"] == 5000  # 2000 of the 5000 were left
    steps.at(4900).join(token=3, client="m3", fresh="3", version=3, rebalance_ms=5000)
    steps.at(5000).timer("join").expect_state(GroupState.COMPLETING, 1)
    assert len(steps.group.members) == 3


def test_first_round_without_initial_delay_ends_at_once() -> None:
    steps = script(group_initial_rebalance_delay_ms=0).join(token=1, client="a", version=3)
    assert steps.timers["join"] == 0
    steps.timer("join").expect_state(GroupState.COMPLETING, 1)


def test_members_that_do_not_rejoin_are_dropped() -> None:
    steps = stable("a", "b", "c").at(20_000)
    steps.join("b-b", token=1, protocols=[("range", b"x")], rebalance_ms=30_000).forget()
    assert steps.timers["join"] == 80_000  # the longest rebalance timeout of any member
    steps.join("c-c", token=2).forget()
    steps.at(80_000).timer("join").expect_answers(
        answer(1, generation_id=2, leader="b-b"), answer(2, generation_id=2, leader="b-b")
    )
    assert list(steps.group.members) == ["b-b", "c-c"]
    assert session("a-a") not in steps.timers


def test_round_ends_when_last_member_has_joined() -> None:
    steps = stable("a", "b").at(20_000).join("a-a", token=1).expect_state(GroupState.PREPARING)
    steps.forget().at(21_000).heartbeat("b-b", token=2, generation=1)
    steps.expect_answers(answer(2, REBALANCING))
    steps.join("b-b", token=3).expect_answers(
        answer(1, generation_id=2), answer(3, generation_id=2)
    )
    steps.expect_timers(a_a=31_000, b_b=31_000, sync=81_000)


def test_pending_member_id_delays_round_until_timeout() -> None:
    steps = stable("a").join("a-a", token=1).forget()
    steps.sync("a-a", token=2, generation=2).forget()
    steps.at(20_000).join(token=3, client="b", fresh="b", session_ms=6000).forget()
    steps.join("a-a", token=4).expect_state(GroupState.PREPARING, 2)
    steps.at(26_000).session_due("b-b").expect_answers(answer(4, generation_id=3))
    steps.join("b-b", token=5).expect_answers(answer(5, UNKNOWN, member_id="b-b"))


def test_expired_ids_do_not_shorten_the_initial_delay() -> None:
    """As in Kafka: its first round waits for the delay, however many have joined."""
    steps = script(group_initial_rebalance_delay_ms=10_000)
    steps.join(token=1, client="a", fresh="a", version=3, session_ms=20_000)
    steps.join(token=2, client="b", fresh="b", session_ms=6000).forget()
    steps.at(6000).session_due("b-b").expect_state(GroupState.PREPARING, 0).forget()
    steps.at(10_000).timer("join").expect_state(GroupState.COMPLETING, 1)


def test_members_that_never_sync_are_dropped() -> None:
    steps = stable("a", "b").join("a-a", token=1).join("b-b", token=2).forget()
    steps.at(20_000).sync("a-a", token=3, generation=2, assign={"a-a": b"x"}).forget()
    steps.expect_state(GroupState.STABLE, 2)
    steps.heartbeat("b-b", token=4, generation=2).forget()
    steps.at(steps.timers["sync"]).timer("sync").expect_state(GroupState.PREPARING)
    assert list(steps.group.members) == ["a-a"]
    assert session("b-b") not in steps.timers
    assert steps.timers["join"] == steps.now_ms + 60_000


def test_leader_lost_during_sync_starts_new_round() -> None:
    steps = completing().sync("b-b", token=5, generation=2).expect()
    steps.at(steps.timers["sync"]).timer("sync").expect(
        CancelTimer(session("a-a")),
        answer(5, REBALANCING, assignment=b"", protocol_name=None),
        set_timer(session("b-b"), steps.now_ms + 10_000),
        CancelTimer("sync"),
        set_timer("join", steps.now_ms + 60_000),
    )
    assert steps.group.leader == "b-b"


def test_expired_session_starts_round() -> None:
    steps = stable("a", "b").at(23_000).session_due("b-b").expect_state(GroupState.PREPARING, 1)
    assert list(steps.group.members) == ["a-a"]
    steps.forget().join("a-a", token=1).expect_answers(answer(1, generation_id=2))


def test_member_with_parked_request_does_not_expire() -> None:
    steps = stable("a", "b").at(15_000).join("a-a", token=1).forget()
    steps.at(23_000).session_due("a-a").expect()  # it waits for b: alive
    assert "a-a" in steps.group.members
    steps = completing().sync("b-b", token=5, generation=2)
    steps.at(steps.timers[session("b-b")]).session_due("b-b").expect()
    assert "b-b" in steps.group.members


def test_new_member_waiting_too_long_is_dropped() -> None:
    steps = stable("a").at(20_000)
    steps.join(token=1, client="b", fresh="b", version=3, rebalance_ms=900_000).forget()
    while steps.now_ms < 320_000:  # a lives and never rejoins
        steps.at(steps.now_ms + 5000).heartbeat("a-a", token=2, generation=1).forget()
    steps.session_due("b-b").expect(CancelTimer(session("b-b")), answer(1, UNKNOWN, member_id=""))
    assert list(steps.group.members) == ["a-a"]


def test_group_is_empty_after_all_members_left() -> None:
    steps = stable("a", "b").at(20_000).leave("a-a", "nobody", "b-b", token=1)
    steps.expect_state(GroupState.EMPTY, 2).expect_timers()
    value = steps.records[-1].value
    assert value is not None
    assert (value.members, value.protocol, value.leader, value.generation) == ([], None, None, 2)
    assert (value.current_state_timestamp, value.protocol_type) == (20_000, "consumer")
    (left,) = steps.bodies(1)
    assert [m.error_code for m in left.members] == [NONE, UNKNOWN, NONE]


def test_parked_request_of_leaving_member_is_answered() -> None:
    steps = preparing()
    assert "c-c" in steps.group.members
    steps.leave("c-c", token=9).expect_answers(answer(1, UNKNOWN, member_id=""), answer(9))
    steps = completing().sync("b-b", token=5, generation=2).forget()
    steps.leave("b-b", token=9).expect_answers(answer(5, UNKNOWN), answer(9))


def test_returned_member_id_starts_no_round() -> None:
    steps = stable("a").join(token=1, client="b", fresh="b").forget()
    steps.leave("b-b", token=2).expect(CancelTimer(session("b-b")), answer(2))
    steps.expect_state(GroupState.STABLE, 1)
    assert not steps.group.pending


def test_repeated_join_answers_previous_one() -> None:
    steps = stable("a", "b").join("a-a", token=1).expect_state(GroupState.PREPARING).forget()
    steps.join("a-a", token=2).expect_answers(answer(1, REBALANCING))
    steps.join("b-b", token=3).expect_answers(
        answer(2, generation_id=2), answer(3, generation_id=2)
    )
    steps.sync("b-b", token=4, generation=2).expect()
    steps.sync("b-b", token=5, generation=2).expect(answer(4, REBALANCING))
