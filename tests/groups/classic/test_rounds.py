"""Rounds of a classic group: who is waited for, how long, who is dropped, when the next begins."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.states import GroupState
from kafkawire.groups.decision import CancelTimer, session
from tests.kit.groups.script import answer, completing, preparing, script, set_timer, stable

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS


def test_two_members_from_nothing_to_stable() -> None:
    told = script()
    told.join(token=1, client="a", fresh="1").expect(
        set_timer(session("a-1"), 10_000),
        answer(1, ErrorCode.MEMBER_ID_REQUIRED, member_id="a-1", generation_id=-1),
    )
    told.at(10).join("a-1", token=2, client="a", protocols=[("range", b"A")]).expect(
        set_timer(session("a-1"), 300_010),
        CancelTimer("sync"),
        set_timer("join", 3010),
    )
    told.expect_state(GroupState.PREPARING, 0)
    told.at(20).join(token=3, client="b", fresh="2").forget()
    told.at(30).join("b-2", token=4, client="b", protocols=[("range", b"B")]).expect(
        set_timer(session("b-2"), 300_030)
    )
    told.at(3010).timer("join").expect(set_timer("join", 6010))  # b came: wait again
    told.at(6010).timer("join").expect(
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
    told.expect_state(GroupState.COMPLETING, 1)
    told.at(6020).sync("b-2", token=5, generation=1).expect()
    told.heartbeat("b-2", token=6, generation=1).expect(
        set_timer(session("b-2"), 16_020), answer(6)
    )
    told.at(6030).sync("a-1", token=7, generation=1, assign={"a-1": b"p0", "b-2": b"p1"})
    told.expect(
        CancelTimer("sync"),
        answer(7, assignment=b"p0", protocol_name="range", protocol_type="consumer"),
        set_timer(session("a-1"), 16_030),
        answer(5, assignment=b"p1"),
        set_timer(session("b-2"), 16_030),
    )
    told.expect_state(GroupState.STABLE, 1).expect_timers(a_1=16_030, b_2=16_030).done()
    value = told.records[-1].value
    assert value is not None
    assert [(m.member_id, m.subscription, m.assignment) for m in value.members] == [
        ("a-1", b"A", b"p0"),
        ("b-2", b"B", b"p1"),
    ]


def test_the_leader_hears_everybodys_metadata() -> None:
    told = script()
    told.join(token=1, client="a", fresh="1", version=3, protocols=[("range", b"A")])
    told.join(token=2, client="b", fresh="2", version=3, protocols=[("range", b"B")])
    told.at(3000).timer("join").at(6000).timer("join")
    led = next(reply for reply in told.decision.replies if reply.token == 1)
    heard = [(m.member_id, m.metadata) for m in led.body.members]  # type: ignore[attr-defined]
    assert heard == [("a-1", b"A"), ("b-2", b"B")]


def test_the_first_round_waits_no_longer_than_the_rebalance_timeout() -> None:
    told = script().join(token=1, client="m1", fresh="1", version=3, rebalance_ms=5000)
    told.at(2900).join(token=2, client="m2", fresh="2", version=3, rebalance_ms=5000)
    told.at(3000).timer("join").forget()
    assert told.timers["join"] == 5000  # 2000 of the 5000 were left
    told.at(4900).join(token=3, client="m3", fresh="3", version=3, rebalance_ms=5000)
    told.at(5000).timer("join").expect_state(GroupState.COMPLETING, 1)
    assert len(told.group.members) == 3


def test_without_a_delay_the_first_round_ends_at_once() -> None:
    told = script(group_initial_rebalance_delay_ms=0).join(token=1, client="a", version=3)
    assert told.timers["join"] == 0
    told.timer("join").expect_state(GroupState.COMPLETING, 1)


def test_members_that_do_not_rejoin_are_dropped() -> None:
    told = stable("a", "b", "c").at(20_000)
    told.join("b-b", token=1, protocols=[("range", b"x")], rebalance_ms=30_000).forget()
    assert told.timers["join"] == 80_000  # the longest rebalance timeout of any member
    told.join("c-c", token=2).forget()
    told.at(80_000).timer("join").expect_answers(
        answer(1, generation_id=2, leader="b-b"), answer(2, generation_id=2, leader="b-b")
    )
    assert list(told.group.members) == ["b-b", "c-c"]
    assert session("a-a") not in told.timers


def test_a_round_ends_when_the_last_member_has_joined() -> None:
    told = stable("a", "b").at(20_000).join("a-a", token=1).expect_state(GroupState.PREPARING)
    told.forget().at(21_000).heartbeat("b-b", token=2, generation=1)
    told.expect_answers(answer(2, REBALANCING))
    told.join("b-b", token=3).expect_answers(answer(1, generation_id=2), answer(3, generation_id=2))
    told.expect_timers(a_a=31_000, b_b=31_000, sync=81_000)


def test_an_id_that_is_out_holds_the_round_until_it_times_out() -> None:
    told = stable("a").join("a-a", token=1).forget()
    told.sync("a-a", token=2, generation=2).forget()
    told.at(20_000).join(token=3, client="b", fresh="b", session_ms=6000).forget()
    told.join("a-a", token=4).expect_state(GroupState.PREPARING, 2)
    told.at(26_000).session_due("b-b").expect_answers(answer(4, generation_id=3))
    told.join("b-b", token=5).expect_answers(answer(5, UNKNOWN, member_id="b-b"))


def test_members_that_never_sync_are_dropped() -> None:
    told = stable("a", "b").join("a-a", token=1).join("b-b", token=2).forget()
    told.at(20_000).sync("a-a", token=3, generation=2, assign={"a-a": b"x"}).forget()
    told.expect_state(GroupState.STABLE, 2)
    told.heartbeat("b-b", token=4, generation=2).forget()
    told.at(told.timers["sync"]).timer("sync").expect_state(GroupState.PREPARING)
    assert list(told.group.members) == ["a-a"]
    assert session("b-b") not in told.timers
    assert told.timers["join"] == told.now_ms + 60_000


def test_a_lost_leader_in_the_sync_phase_opens_the_round_again() -> None:
    told = completing().sync("b-b", token=5, generation=2).expect()
    told.at(told.timers["sync"]).timer("sync").expect(
        CancelTimer(session("a-a")),
        answer(5, REBALANCING, assignment=b"", protocol_name=None),
        set_timer(session("b-b"), told.now_ms + 10_000),
        CancelTimer("sync"),
        set_timer("join", told.now_ms + 60_000),
    )
    assert told.group.leader == "b-b"


def test_a_session_that_ends_opens_a_round() -> None:
    told = stable("a", "b").at(23_000).session_due("b-b").expect_state(GroupState.PREPARING, 1)
    assert list(told.group.members) == ["a-a"]
    told.forget().join("a-a", token=1).expect_answers(answer(1, generation_id=2))


def test_a_parked_request_keeps_its_member() -> None:
    told = stable("a", "b").at(15_000).join("a-a", token=1).forget()
    told.at(23_000).session_due("a-a").expect()  # it waits for b: alive
    assert "a-a" in told.group.members
    told = completing().sync("b-b", token=5, generation=2)
    told.at(told.timers[session("b-b")]).session_due("b-b").expect()
    assert "b-b" in told.group.members


def test_a_new_member_that_waits_too_long_is_dropped() -> None:
    told = stable("a").at(20_000)
    told.join(token=1, client="b", fresh="b", version=3, rebalance_ms=900_000).forget()
    while told.now_ms < 320_000:  # a lives and never rejoins
        told.at(told.now_ms + 5000).heartbeat("a-a", token=2, generation=1).forget()
    told.session_due("b-b").expect(CancelTimer(session("b-b")), answer(1, UNKNOWN, member_id=""))
    assert list(told.group.members) == ["a-a"]


def test_everybody_leaving_empties_the_group() -> None:
    told = stable("a", "b").at(20_000).leave("a-a", "nobody", "b-b", token=1)
    told.expect_state(GroupState.EMPTY, 2).expect_timers()
    value = told.records[-1].value
    assert value is not None
    assert (value.members, value.protocol, value.leader, value.generation) == ([], None, None, 2)
    assert (value.current_state_timestamp, value.protocol_type) == (20_000, "consumer")
    codes = [m.error_code for m in told.decision.replies[-1].body.members]  # type: ignore[attr-defined]
    assert codes == [NONE, UNKNOWN, NONE]


def test_a_parked_member_that_leaves_is_answered() -> None:
    told = preparing()
    assert "c-c" in told.group.members
    told.leave("c-c", token=9).expect_answers(answer(1, UNKNOWN, member_id=""), answer(9))
    told = completing().sync("b-b", token=5, generation=2).forget()
    told.leave("b-b", token=9).expect_answers(answer(5, UNKNOWN), answer(9))


def test_an_id_given_back_costs_no_round() -> None:
    told = stable("a").join(token=1, client="b", fresh="b").forget()
    told.leave("b-b", token=2).expect(CancelTimer(session("b-b")), answer(2))
    told.expect_state(GroupState.STABLE, 1)
    assert not told.group.pending


def test_a_repeated_join_answers_the_one_given_up() -> None:
    told = stable("a", "b").join("a-a", token=1).expect_state(GroupState.PREPARING).forget()
    told.join("a-a", token=2).expect_answers(answer(1, REBALANCING))
    told.join("b-b", token=3).expect_answers(answer(2, generation_id=2), answer(3, generation_id=2))
    told.sync("b-b", token=4, generation=2).expect()
    told.sync("b-b", token=5, generation=2).expect(answer(4, REBALANCING))
