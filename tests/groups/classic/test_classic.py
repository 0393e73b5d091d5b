"""The classic group: every request in every state, protocol selection, limits."""

from __future__ import annotations

import pytest

from kafkawire.codec.compile import encode_versioned
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.rebalance import decide_loaded
from kafkawire.groups.classic.sync import check_commit, sync
from kafkawire.groups.classic.working_copy import Draft
from kafkawire.groups.model.changes import Entered
from kafkawire.groups.model.decision import SetTimer, session
from kafkawire.groups.model.member import protocols_of, subscribed_topics
from kafkawire.groups.model.request import Client
from kafkawire.groups.model.states import LEGAL, GroupState, may_move
from kafkawire.messages.stored import ConsumerProtocolSubscription
from kafkawire.messages.sync_group import SyncGroupRequest
from tests.kit.groups.requests import group_request, replies_of
from tests.kit.groups.script import Script, answer, completing, preparing, script, stable

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
GONE = ErrorCode.COORDINATOR_NOT_AVAILABLE
PARKED = None


# -- every state, every request ---------------------------------------------------------------


def empty() -> Script:
    """Generation 2, after every member has left."""
    steps = stable("a", "b").leave("a-a", "b-b", token=1).forget()
    return steps.expect_state(GroupState.EMPTY, 2)


def settled() -> Script:
    return stable("a", "b")


def dead() -> Script:
    steps = stable("a", "b")
    steps.group.apply(Entered(GroupState.DEAD, steps.now_ms))
    return steps


IN = {
    GroupState.EMPTY: empty,
    GroupState.PREPARING: preparing,
    GroupState.COMPLETING: completing,
    GroupState.STABLE: settled,
    GroupState.DEAD: dead,
}
# For each state: the request of a-a (the leader) or b-b, and the error code of the response.
TABLE: list[tuple[GroupState, str, ErrorCode | None]] = [
    (GroupState.EMPTY, "join new", PARKED),
    (GroupState.EMPTY, "join known", UNKNOWN),
    (GroupState.EMPTY, "sync", UNKNOWN),
    (GroupState.EMPTY, "heartbeat", UNKNOWN),
    (GroupState.EMPTY, "leave", UNKNOWN),
    (GroupState.EMPTY, "commit", UNKNOWN),
    (GroupState.EMPTY, "commit simple", NONE),
    (GroupState.PREPARING, "join new", PARKED),
    (GroupState.PREPARING, "join known", PARKED),
    (GroupState.PREPARING, "sync", REBALANCING),
    (GroupState.PREPARING, "heartbeat", REBALANCING),
    (GroupState.PREPARING, "leave", NONE),
    (GroupState.PREPARING, "commit", NONE),
    (GroupState.PREPARING, "commit simple", UNKNOWN),
    (GroupState.COMPLETING, "join new", PARKED),
    (GroupState.COMPLETING, "join known", NONE),
    (GroupState.COMPLETING, "join changed", PARKED),
    (GroupState.COMPLETING, "sync", PARKED),
    (GroupState.COMPLETING, "heartbeat", NONE),
    (GroupState.COMPLETING, "leave", NONE),
    (GroupState.COMPLETING, "commit", REBALANCING),
    (GroupState.COMPLETING, "commit simple", UNKNOWN),
    (GroupState.STABLE, "join new", PARKED),
    (GroupState.STABLE, "join known", NONE),
    (GroupState.STABLE, "join changed", PARKED),
    (GroupState.STABLE, "join leader", PARKED),
    (GroupState.STABLE, "sync", NONE),
    (GroupState.STABLE, "heartbeat", NONE),
    (GroupState.STABLE, "leave", NONE),
    (GroupState.STABLE, "commit", NONE),
    (GroupState.STABLE, "commit simple", UNKNOWN),
    (GroupState.DEAD, "join new", GONE),
    (GroupState.DEAD, "join known", GONE),
    (GroupState.DEAD, "sync", GONE),
    (GroupState.DEAD, "heartbeat", GONE),
    (GroupState.DEAD, "leave", GONE),
    (GroupState.DEAD, "commit", GONE),
    (GroupState.DEAD, "commit simple", GONE),
]


@pytest.mark.parametrize(("state", "question", "code"), TABLE)
def test_each_request_in_each_state_gets_kafkas_error_code(
    state: GroupState, question: str, code: ErrorCode | None
) -> None:
    steps = IN[state]()
    generation = steps.group.generation
    if question.startswith("commit"):
        simple = question == "commit simple"
        found = check_commit(
            steps.group, "" if simple else "b-b", None, -1 if simple else generation
        )
        assert found is code
        return
    if question == "join new":
        steps.join(token=7, client="d", version=3)
    elif question == "join known":
        steps.join("b-b", token=7)
    elif question == "join leader":
        steps.join("a-a", token=7)
    elif question == "join changed":
        steps.join("b-b", token=7, protocols=[("range", b"other")])
    elif question == "sync":
        steps.sync("b-b", token=7, generation=generation)
    elif question == "heartbeat":
        steps.heartbeat("b-b", token=7, generation=generation)
    else:
        steps.leave("b-b", token=7)
    answers = steps.bodies(7)
    if code is PARKED:
        assert not answers
    elif question == "leave" and code is not GONE:
        assert [m.error_code for m in answers[0].members] == [code]
    else:
        assert [body.error_code for body in answers] == [code]


@pytest.mark.parametrize("state", [GroupState.PREPARING, GroupState.COMPLETING, GroupState.STABLE])
def test_wrong_generation_is_illegal_generation(state: GroupState) -> None:
    steps = IN[state]()
    steps.sync("b-b", token=7, generation=9).expect(answer(7, ILLEGAL))
    steps.heartbeat("b-b", token=8, generation=9).expect(answer(8, ILLEGAL))
    assert check_commit(steps.group, "b-b", None, 9) is ILLEGAL


def test_allowed_state_transitions() -> None:
    assert set(LEGAL) == set(GroupState)
    assert not LEGAL[GroupState.DEAD]
    assert may_move(GroupState.STABLE, GroupState.EMPTY, recorded=True)
    assert not may_move(GroupState.STABLE, GroupState.EMPTY, recorded=False)
    assert not may_move(GroupState.DEAD, GroupState.EMPTY, recorded=True)
    with pytest.raises(AssertionError):
        stable("a").group.apply(Entered(GroupState.COMPLETING, 0))


# -- protocols and limits ---------------------------------------------------------------------


def test_protocol_is_chosen_by_vote() -> None:
    steps = script()
    steps.join(token=1, client="a", version=3, protocols=["range", "roundrobin"])
    steps.join(token=2, client="b", version=3, protocols=["roundrobin", "range"])
    steps.join(token=3, client="c", version=3, protocols=["sticky", "roundrobin", "range"])
    steps.at(3000).timer("join").at(6000).timer("join")
    assert steps.group.protocol == "roundrobin"


def test_member_without_common_protocol_is_refused() -> None:
    mismatch = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    steps = stable("a")
    steps.join(token=1, protocols=["other"]).expect(answer(1, mismatch, member_id=""))
    steps.join(token=2, protocol_type="connect").expect(answer(2, mismatch))
    steps.join("a-a", token=3, protocols=[]).expect(answer(3, mismatch, member_id="a-a"))
    steps.sync("a-a", token=4, generation=1, protocol="other").expect(answer(4, mismatch))
    steps.sync("a-a", token=5, generation=1, protocol_type="connect").expect(answer(5, mismatch))
    script().join(token=6, protocols=[]).expect(answer(6, mismatch))
    script().join(token=7, protocol_type="").expect(answer(7, mismatch))


def test_group_max_size_is_enforced() -> None:
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    steps = stable("a", "b", group_max_size=2)
    steps.join(token=1, client="c").expect(answer(1, full, member_id=""))
    steps.join("a-a", token=2).join(token=3, client="c", version=3).forget()
    steps.expect_state(GroupState.PREPARING)  # c joined before b
    steps.join("b-b", token=4).expect_answers(
        answer(2, generation_id=2), answer(3, generation_id=2), answer(4, full)
    )
    assert len(steps.group.members) == 2


def test_pending_member_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.groups.classic.join.MAX_PENDING", 2)
    steps = script().join(token=1).join(token=2).forget()
    steps.join(token=3).expect(answer(3, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=""))


def test_loaded_group_over_max_size_drops_members() -> None:
    steps = stable("a", "b", "c")
    steps.group.settings.group_max_size = 2  # type: ignore[misc]
    decision = decide_loaded(steps.group, 20_000)
    assert SetTimer(session("a-a"), 30_000) in decision.effects
    for step in decision.steps:
        steps.group.apply(step)
    assert steps.group.state is GroupState.PREPARING


def test_protocol_named_twice_counts_once() -> None:
    assert protocols_of([("a", b"1"), ("b", b"2"), ("a", b"3")]) == (("a", b"1"), ("b", b"2"))
    steps = stable("a").join("a-a", token=1, protocols=["range", "range"])
    assert steps.group.spoken["range"] == 1


def test_working_copy_does_not_change_shared_members() -> None:
    """A decision on a working copy does not change the group, although members are shared."""
    steps = stable("a", "b")
    draft = Draft(steps.group, 0)
    draft.do(Entered(GroupState.PREPARING, 5))
    assert steps.group.state is GroupState.STABLE
    assert draft.group.members is not steps.group.members
    assert draft.group.members["a-a"] is steps.group.members["a-a"]


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_are_read_in_every_version(version: int) -> None:
    said = ConsumerProtocolSubscription(topics=["one", "zwei", ""], user_data=b"\xff")
    assert subscribed_topics(encode_versioned(said, version)) == {"one", "zwei", ""}


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 5,
        b"\0\0\0\0\0\1",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
    ],
)
def test_garbage_is_not_parsed_as_subscription(garbage: bytes) -> None:
    assert subscribed_topics(garbage) is None


def test_heartbeat_does_not_copy_group(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = stable("a")
    monkeypatch.setattr(ClassicGroup, "copy", lambda self: pytest.fail("copied"))
    steps.heartbeat("a-a", token=1, generation=1).expect_answers(answer(1))
    stranger = SyncGroupRequest(member_id="nobody", generation_id=1)
    assert replies_of(sync(steps.group, group_request(2, 5, stranger, Client(None, "")), 0))
