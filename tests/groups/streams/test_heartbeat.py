"""StreamsGroupHeartbeat: Kafka's checks and texts, epochs, states, tasks, statuses, records.

Covers: kafkawire.groups.streams.removal, kafkawire.groups.streams.target,
kafkawire.groups.streams.views, kafkawire.groups.kinds.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.decision import INITIAL, SetTimer, session
from kafkawire.groups.model.records import GroupRecord, StreamsKind
from kafkawire.groups.model.request import Client, StreamsHeartbeatResult
from kafkawire.groups.streams.group import StreamsState
from kafkawire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.messages.streams_group_describe import (
    Endpoint,
    KeyValue,
    StreamsGroupDescribeRequest,
    TaskIds,
    TaskOffset,
)
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from tests.kit.groups.desk import commit_of
from tests.kit.groups.streams import StreamsDesk, kinds, stateful, streams_facts, word_count

ALL = [("0", 0), ("0", 1), ("0", 2), ("0", 3), ("1", 0), ("1", 1), ("1", 2), ("1", 3)]
K = StreamsKind


def started(*members: str, **settings: Any) -> StreamsDesk:
    """A stable group of these members."""
    desk = StreamsDesk()
    for name, value in settings.items():
        setattr(desk.settings, f"group_streams_{name}", value)
    desk.settle(*members)
    return desk


def state(desk: StreamsDesk) -> StreamsState:
    return desk.group.state


def codes(answer: StreamsGroupHeartbeatResponse) -> list[int]:
    return [each.status_code for each in answer.status or ()]


NONE: list[TaskIds] = []


def request(**fields: Any) -> StreamsGroupHeartbeatRequest:
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 1,
        "topology": word_count(),
        "active_tasks": NONE,
        "standby_tasks": NONE,
        "warmup_tasks": NONE,
        **fields,
    }
    return StreamsGroupHeartbeatRequest("g", "a", 0, **given)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (StreamsGroupHeartbeatRequest("", " ", -9), "MemberId can't be empty."),
        (StreamsGroupHeartbeatRequest("", "a", -9), "GroupId can't be empty."),
        (StreamsGroupHeartbeatRequest("g", "a", -9, 0, ""), "InstanceId can't be empty."),
        (StreamsGroupHeartbeatRequest("g", "a", -9, 0, None, ""), "RackId can't be empty."),
        (
            request(rebalance_timeout_ms=-1),
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            request(active_tasks=[TaskIds("0", [0])]),
            "ActiveTasks must be empty when (re-)joining.",
        ),
        (request(warmup_tasks=None), "WarmupTasks must be empty when (re-)joining."),
        (request(topology=None), "Topology must be non-null when (re-)joining."),
        (request(topology=Topology(-1)), "Topology epoch must be non-negative."),
        (
            request(topology=Topology(0, [Subtopology("0", [], ["x"])])),
            "Regular expressions for source topics are not supported yet.",
        ),
        (StreamsGroupHeartbeatRequest("g", "a", -2), "InstanceId can't be null."),
        (
            StreamsGroupHeartbeatRequest("g", "a", -3),
            "MemberEpoch is -3, but must be greater than or equal to -2.",
        ),
        (
            StreamsGroupHeartbeatRequest("g", "a", 1, active_tasks=NONE),
            "If one task-type is non-null, all must be non-null.",
        ),
        (
            StreamsGroupHeartbeatRequest("g", "a", 1, topology=word_count()),
            "Topology can only be provided when (re-)joining.",
        ),
        (
            request(client_tags=[KeyValue("k", "v")] * 10_001),
            "The heartbeat has more than 10000 tasks, offsets and tags.",
        ),
        (
            StreamsGroupHeartbeatRequest(
                "g",
                "a",
                1,
                active_tasks=[TaskIds("0", list(range(10_000)))],
                standby_tasks=NONE,
                warmup_tasks=NONE,
            ),
            "The heartbeat has more than 10000 tasks, offsets and tags.",
        ),
        (
            StreamsGroupHeartbeatRequest("g" * 40_000, "a", 1),
            "GroupId or MemberId is too long.",
        ),
    ],
)
def test_checks_of_a_request(request_: StreamsGroupHeartbeatRequest, text: str) -> None:
    found = StreamsDesk().ask(request_)
    assert isinstance(found, StreamsHeartbeatResult)
    assert (found.response.error_code, found.response.error_message) == (E.INVALID_REQUEST, text)


def test_the_first_member_gets_all_tasks() -> None:
    desk = StreamsDesk()
    answer = desk.beat("a")
    # Kafka's order, and its first epoch.
    assert kinds(desk) == [K.MEMBER, K.TOPOLOGY, K.GROUP, K.TARGET_MEMBER, K.TARGET, K.CURRENT]
    assert (answer.member_epoch, answer.status) == (2, [])
    assert answer.active_tasks == [TaskIds("0", [0, 1, 2, 3]), TaskIds("1", [0, 1, 2, 3])]
    assert (answer.standby_tasks, answer.warmup_tasks) == ([], [])
    assert (answer.heartbeat_interval_ms, answer.task_offset_interval_ms) == (5_000, 60_000)
    assert state(desk) is StreamsState.STABLE
    again = desk.beat("a", 2)
    assert (again.member_epoch, again.active_tasks, again.standby_tasks) == (2, None, None)
    assert desk.decision.steps == []
    at_ms = desk.now_ms + 45_000
    assert desk.decision.effects[:-1] == [SetTimer(session("a"), at_ms)]


def test_tasks_move_to_a_second_member_once_they_are_released() -> None:
    desk = started("a")
    answer = desk.turn("b")
    assert (answer.member_epoch, answer.active_tasks) == (3, [])
    assert state(desk) is StreamsState.RECONCILING
    # The first member learns what to close, and keeps its epoch.
    answer = desk.turn("a")
    assert answer.member_epoch == 2
    assert answer.active_tasks == [TaskIds("0", [0, 1]), TaskIds("1", [0, 1])]
    assert not desk.turn("b").active_tasks
    assert desk.turn("a").member_epoch == 3
    answer = desk.turn("b")
    assert answer.active_tasks == [TaskIds("0", [2, 3]), TaskIds("1", [2, 3])]
    assert state(desk) is StreamsState.STABLE


def test_without_a_list_of_tasks_nothing_counts_as_released() -> None:
    desk = started("a")
    desk.turn("b")
    desk.turn("a")
    for _ in range(2):
        assert desk.beat("a", 2).member_epoch == 2
    assert desk.beat("a", 2, owned=[set(ALL), set(), set()]).member_epoch == 2
    assert desk.turn("a").member_epoch == 3


def test_tasks_are_given_again_if_an_answer_was_lost() -> None:
    desk = started("a")
    desk.turn("b")
    desk.turn("a")
    desk.turn("a")
    lost = desk.beat("b", 3)
    assert lost.active_tasks == [TaskIds("0", [2, 3]), TaskIds("1", [2, 3])]
    # Its epoch is the same; the client lists its tasks after an error.
    assert desk.beat("b", 3).active_tasks is None
    assert desk.beat("b", 3, owned=[set(), set(), set()]).active_tasks == lost.active_tasks
    tasks = {("0", 2), ("0", 3), ("1", 2), ("1", 3)}
    assert desk.beat("b", 3, owned=[tasks, set(), set()]).active_tasks is None


def test_the_first_assignment_waits_for_members() -> None:
    desk = StreamsDesk()
    desk.settings.group_streams_initial_rebalance_delay_ms = 3_000
    answer = desk.turn("a")
    assert (answer.member_epoch, answer.active_tasks, codes(answer)) == (1, [], [5])
    assert answer.status is not None
    assert answer.status[0].status_detail == (
        "Assignment delayed due to the configured initial rebalance delay."
    )
    assert desk.timers["g", INITIAL] == desk.now_ms + 3_000
    desk.now_ms += 1_000
    assert codes(desk.turn("b")) == [5]
    desk.now_ms += 2_000
    desk.fire_due()
    assert desk.group.target_epoch == desk.group.epoch
    desk.settle("a", "b")
    assert {name: len(tasks) for name, tasks in desk.active().items()} == {"a": 4, "b": 4}
    # A group that became empty does not wait for a delay that has ended, but for another one.
    desk.beat("a", -1)
    desk.beat("b", -1)
    desk.clients.clear()
    assert codes(desk.turn("c")) == [5]


def test_the_delay_ends_without_members() -> None:
    desk = StreamsDesk()
    desk.settings.group_streams_initial_rebalance_delay_ms = 3_000
    desk.turn("a")
    desk.beat("a", -1)
    desk.now_ms += 3_000
    desk.fire_due()
    assert not desk.group.delayed
    # After a load there is no delay: the next heartbeat assigns.
    desk.clients.clear()
    desk.turn("b")
    desk.reload()
    desk.settle("b")
    assert desk.active() == {"b": ALL}


def test_assignments_have_an_interval() -> None:
    desk = started("a", assignment_interval_ms=1_000)
    answer = desk.turn("b")
    assert codes(answer) == [5]
    assert answer.status is not None
    assert answer.status[0].status_detail == (
        "Assignment delayed due to the configured assignment interval."
    )
    assert state(desk) is StreamsState.ASSIGNING
    desk.now_ms += 1_000
    assert codes(desk.turn("b")) == []
    assert state(desk) is StreamsState.RECONCILING


def test_missing_topics_are_statuses() -> None:
    desk = StreamsDesk()
    desk.topics.clear()
    answer = desk.turn("a")
    assert (codes(answer), answer.active_tasks) == ([1], [])
    assert (desk.group.state, desk.missing) == (StreamsState.NOT_READY, ())
    assert answer.status is not None
    assert answer.status[0].status_detail == "Source topics t are missing."
    desk.topics["t"] = 2
    answer = desk.turn("a")
    assert codes(answer) == [3]
    assert [each.name for each in desk.missing] == ["c", "r"]
    desk.create_missing()
    desk.settle("a")
    assert desk.active() == {"a": [("0", 0), ("0", 1), ("1", 0), ("1", 1)]}
    # Partitions that are added change the number of tasks, once the internal topics have them.
    desk.topics["t"] = 3
    answer = desk.turn("a")
    assert codes(answer) == [2]
    assert state(desk) is StreamsState.NOT_READY
    desk.topics.update(r=3, c=3)
    desk.settle("a")
    assert len(desk.active()["a"]) == 6


def test_a_heartbeat_that_changes_nothing_does_not_configure_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = started("a")
    desk.topics["other"] = 1
    monkeypatch.setattr("kafkawire.groups.streams.heartbeat.configure", None)
    desk.turn("a")  # another topic: only the hash is compared
    monkeypatch.setattr("kafkawire.groups.streams.heartbeat.hash_topics", None)
    desk.turn("a")
    assert desk.decision.steps == []


def test_the_first_member_sets_the_topology() -> None:
    desk = StreamsDesk()
    desk.settle("a", topology=None)
    answer = desk.beat("b", topology=word_count(1))
    assert (answer.error_code, answer.error_message) == (
        E.INVALID_REQUEST, "Topology updates are not supported yet.",
    )  # fmt: skip
    assert desk.beat("b", topology=stateful()).error_code == E.INVALID_REQUEST
    # The order of subtopologies has no meaning.
    turned = Topology(0, list(reversed(word_count().subtopologies)))
    assert desk.beat("b", topology=turned).error_code == E.NONE


def test_a_member_with_an_older_topology_is_stale() -> None:
    desk = StreamsDesk()
    desk.beat("a", topology=word_count(3))
    answer = desk.beat("b", topology=stateful(2))
    assert (answer.error_code, codes(answer)) == (E.NONE, [0])
    assert answer.status is not None
    assert answer.status[0].status_detail == (
        "The member's topology epoch 2 is behind the group's topology epoch 3."
    )
    assert codes(desk.beat("b", answer.member_epoch)) == [0]
    assert desk.group.members["b"].topology_epoch == 2


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        (("9", 0), "Subtopology 9 does not exist in the topology."),
        (("1", 4), "Task 4 for subtopology 1 is invalid. Number of tasks for this subtopology: 4"),
    ],
)
def test_tasks_that_do_not_exist(tasks: tuple[str, int], text: str) -> None:
    desk = started("a")
    answer = desk.beat("a", 2, owned=[{tasks}, set(), set()])
    assert (answer.error_code, answer.error_message) == (E.INVALID_REQUEST, text)


def test_epochs_that_are_refused() -> None:
    desk = started("a", "b")
    epoch = desk.group.members["a"].epoch
    answer = desk.beat("a", epoch + 1)
    assert answer.error_code == E.FENCED_MEMBER_EPOCH
    assert answer.error_message == (
        "The streams group member has a greater member epoch (4) than the one known by the group "
        "coordinator (3). The member must abandon all its partitions and rejoin."
    )
    # The answer with the new epoch was lost: its tasks are a part of what it has.
    assert desk.group.members["a"].previous_epoch == 2
    assert desk.beat("a", 2).error_code == E.FENCED_MEMBER_EPOCH
    assert desk.beat("a", 2, owned=[set(ALL), set(), set()]).error_code == E.FENCED_MEMBER_EPOCH
    assert desk.beat("a", 2, owned=[{("0", 0)}, set(), set()]).member_epoch == 3
    assert desk.beat("a", 1, owned=[set(), set(), set()]).error_code == E.FENCED_MEMBER_EPOCH
    assert desk.beat("x", 3).error_code == E.UNKNOWN_MEMBER_ID
    assert desk.beat("x", 3, group="none").error_code == E.GROUP_ID_NOT_FOUND
    # A known member may always join again, and is given what it has.
    answer = desk.beat("a")
    assert (answer.error_code, answer.member_epoch) == (E.NONE, 3)
    assert answer.active_tasks == [TaskIds("0", [0, 1]), TaskIds("1", [0, 1])]


def test_the_group_is_full() -> None:
    desk = started("a", max_size=1)
    answer = desk.beat("b")
    assert (answer.error_code, answer.error_message) == (
        E.GROUP_MAX_SIZE_REACHED,
        "The streams group has reached its maximum capacity of 1 members.",
    )
    assert desk.beat("a").error_code == E.NONE


def test_a_member_leaves() -> None:
    desk = started("a", "b")
    answer = desk.beat("a", -1)
    assert kinds(desk) == [K.CURRENT, K.TARGET_MEMBER, K.MEMBER, K.GROUP]
    assert (answer.member_epoch, answer.active_tasks, answer.status) == (-1, None, [])
    desk.clients.pop("a")
    desk.settle("b")
    assert desk.active() == {"b": ALL}
    desk.beat("b", -1)
    assert kinds(desk) == [K.CURRENT, K.TARGET_MEMBER, K.MEMBER, K.GROUP, K.TARGET]
    assert state(desk) is StreamsState.EMPTY
    assert desk.group.target_epoch == desk.group.epoch
    assert desk.group.target_at_ms == 0
    assert not desk.group.owners
    assert not desk.timers


def test_sessions_and_revocations_end() -> None:
    desk = started("a", "b")
    desk.now_ms += 44_999
    desk.turn("b")
    desk.now_ms += 1
    desk.fire_due()
    assert desk.group.members.keys() == {"b"}
    desk.clients.pop("a")
    desk.settle("b")
    desk.turn("c")
    desk.turn("b")  # is to revoke, and does not confirm that
    desk.now_ms += 29_999
    desk.fire_due()
    desk.beat("b", desk.group.members["b"].epoch)
    desk.beat("c", desk.group.members["c"].epoch)
    desk.now_ms += 1
    desk.fire_due()
    assert desk.group.members.keys() == {"c"}
    desk.settle("c")
    assert desk.active() == {"c": ALL}


def test_static_members_come_back_with_their_tasks() -> None:
    desk = StreamsDesk()
    desk.settle("a", "b")
    one = desk.turn("one", instance_id="i")
    assert not one.error_code
    desk.settle("a", "b", "one")
    before = desk.active()
    epoch = desk.group.epoch
    assert desk.beat("two", instance_id="i").error_code == E.UNRELEASED_INSTANCE_ID
    at = desk.group.members["one"].epoch
    assert desk.beat("two", at, instance_id="i").error_code == E.FENCED_INSTANCE_ID
    assert desk.beat("one", at, instance_id="j").error_code == E.UNKNOWN_MEMBER_ID
    answer = desk.beat("one", -2, instance_id="i")
    assert (answer.member_epoch, kinds(desk)) == (-2, [K.CURRENT])
    answer = desk.beat("two", instance_id="i", process_id="process-one")
    assert kinds(desk) == [
        K.CURRENT, K.TARGET_MEMBER, K.MEMBER, K.MEMBER, K.TARGET_MEMBER, K.CURRENT,
    ]  # fmt: skip
    assert (answer.member_epoch, desk.group.epoch) == (epoch, epoch)
    assert desk.active()["two"] == before["one"]
    # What the process before committed late is accepted, until the new one has an epoch.
    assert desk.group.members["two"].assigned.active == dict.fromkeys(before["one"], 0)
    # Another process is another place for tasks.
    desk.beat("two", -2, instance_id="i")
    desk.beat("three", instance_id="i", process_id="process-three")
    assert desk.group.epoch == epoch + 1


def test_members_share_a_process() -> None:
    """A standby copy is in another process than its task."""
    desk = StreamsDesk()
    desk.settings.group_streams_num_standby_replicas = 1
    topology = stateful()
    for member in ("a1", "a2"):
        desk.turn(member, topology=topology, process_id="a")
    desk.settle("a1", "a2")
    assert not any(each.assigned.standby for each in desk.group.members.values())
    desk.turn("b", topology=topology, process_id="b")
    desk.settle("a1", "a2", "b")
    members = desk.group.members
    near = members["a1"].assigned.active.keys() | members["a2"].assigned.active.keys()
    assert members["b"].assigned.standby == near
    far = members["a1"].assigned.standby | members["a2"].assigned.standby
    assert far == members["b"].assigned.active.keys()
    assert len(near) + len(far) == 4


def test_a_change_of_the_number_of_standby_copies_raises_the_epoch() -> None:
    desk = StreamsDesk()
    for member in ("a", "b"):
        desk.turn(member, topology=stateful())
    desk.settle("a", "b")
    epoch = desk.group.epoch
    assert desk.group.configs == {"num.standby.replicas": "0"}
    desk.settings.group_streams_num_standby_replicas = 1
    desk.settle("a", "b")
    assert desk.group.epoch == epoch + 1
    for each in desk.group.members.values():
        assert len(each.assigned.active) == len(each.assigned.standby) == 2


def test_endpoints_are_given_when_they_change() -> None:
    desk = StreamsDesk()
    answer = desk.turn("a", user_endpoint=Endpoint("h", 1))
    one = (answer.partitions_by_user_endpoint or [])[0]
    assert one.user_endpoint == Endpoint("h", 1)
    assert [(each.topic, each.partitions) for each in one.active_partitions] == [
        ("t", [0, 1, 2, 3]), ("r", [0, 1, 2, 3]),
    ]  # fmt: skip
    epoch = desk.group.endpoint_epoch
    answer = desk.turn("a", endpoint_information_epoch=epoch)
    assert (answer.partitions_by_user_endpoint, answer.endpoint_information_epoch) == (None, epoch)
    desk.settle("a", "b")
    assert desk.group.endpoint_epoch > epoch
    answer = desk.turn("b", endpoint_information_epoch=epoch)
    one = (answer.partitions_by_user_endpoint or [])[0]
    assert one.active_partitions[0].partitions == [0, 1]
    # A member that joins without an endpoint has none any more.
    answer = desk.beat("a", endpoint_information_epoch=epoch)
    assert answer.partitions_by_user_endpoint == []


def test_a_shutdown_lasts_until_the_group_is_empty() -> None:
    desk = started("a", "b")
    answer = desk.turn("a", shutdown_application=True)
    assert codes(answer) == [4]
    assert answer.status is not None
    assert answer.status[0].status_detail == (
        "Streams group member a encountered a fatal error and requested a shutdown for the entire "
        "application."
    )
    desk.beat("a", -1)
    assert codes(desk.turn("b")) == [4]
    desk.beat("b", -1)
    desk.clients.clear()
    assert codes(desk.turn("c")) == []
    # With the heartbeat that leaves.
    desk.settle("c", "d")
    desk.beat("c", -1, shutdown_application=True)
    assert codes(desk.turn("d")) == [4]


def test_task_offsets_are_described() -> None:
    desk = started("a")
    offsets = [TaskOffset("1", 0, 7), TaskOffset("9", 0, 1), TaskOffset("1", 4, 1)]
    desk.turn("a", task_offsets=offsets, task_end_offsets=[TaskOffset("1", 0, 9)])
    desk.turn("a", task_offsets=[TaskOffset("1", 0, 8)])
    (member,) = desk.ask(StreamsGroupDescribeRequest(["g"])).groups[0].members
    assert member.task_offsets == [TaskOffset("1", 0, 8)]
    assert member.task_end_offsets == [TaskOffset("1", 0, 9)]


def test_offsets_name_each_task_once() -> None:
    desk = started("a")
    twice = [TaskOffset("1", 0, 1)] * 2
    for fields in ({"task_offsets": twice}, {"task_end_offsets": twice}):
        answer = desk.turn("a", **fields)
        assert answer.error_code == E.INVALID_REQUEST
        assert answer.error_message == (
            "Task offsets contain a duplicate entry for subtopology 1 and partition 0."
        )


def lag(offset: int, end: int, *partitions: int) -> dict[str, list[TaskOffset]]:
    """Return the fields with which a member reports its copies."""
    return {
        "task_offsets": [TaskOffset("1", at, offset) for at in partitions],
        "task_end_offsets": [TaskOffset("1", at, end) for at in partitions],
    }


def warming(**settings: Any) -> StreamsDesk:
    """A stable group of a, which has all tasks, and of b, which is to run two with state."""
    desk = started("a", **settings)
    desk.turn("b", **lag(0, 0))
    desk.settle("a", "b")
    return desk


def roles(desk: StreamsDesk, name: str) -> list[set[int]]:
    """Return the partitions of subtopology 1 that a member has, by role."""
    return [{at for key, at in tasks if key == "1"} for tasks in desk.clients[name].tasks]


def test_a_task_moves_once_its_next_owner_has_its_state() -> None:
    desk = warming()
    assert (roles(desk, "a"), roles(desk, "b")) == (
        [{0, 1, 2, 3}, set(), set()], [set(), set(), {2, 3}],
    )  # fmt: skip
    # In Kafka's records the target is what the assignor wants.
    (wanted,) = (tasks for id_, tasks in desk.group.target.items() if id_ == "b")
    assert {("1", 2), ("1", 3)} <= wanted.active
    assert not wanted.warmup
    found = {each.member_id: each for each in describe(desk).members}["b"]
    assert found.assignment.warmup_tasks == [TaskIds("1", [2, 3])]
    assert found.target_assignment.warmup_tasks == []
    assert state(desk) is StreamsState.STABLE
    # Too much of them is missing.
    epoch = desk.group.epoch
    desk.turn("b", **lag(0, 10_001, 2, 3))
    assert desk.group.epoch == epoch
    desk.turn("b", **lag(1, 10_001, 2))
    assert kinds(desk) == [K.GROUP, K.TARGET, K.CURRENT]
    assert (desk.group.epoch, desk.group.target_epoch) == (epoch + 1, epoch + 1)
    desk.settle("a", "b")
    assert (roles(desk, "a"), roles(desk, "b")) == (
        [{0, 1, 3}, set(), set()], [{2}, set(), {3}],
    )  # fmt: skip
    desk.turn("b", **lag(10_001, 10_001, 3))
    desk.settle("a", "b")
    assert (roles(desk, "a"), roles(desk, "b")) == (
        [{0, 1}, set(), set()], [{2, 3}, set(), set()],
    )  # fmt: skip
    # Nothing is left to compute.
    desk.turn("b", **lag(1, 1, 3))
    assert (kinds(desk), desk.group.epoch) == ([], epoch + 2)


def test_settings_of_warm_up_tasks_take_effect_with_the_next_heartbeats() -> None:
    desk = warming(num_warmup_replicas=1)
    assert roles(desk, "b") == [set(), set(), {2}]
    desk.turn("b", **lag(0, 50, 2))
    desk.settings.group_streams_acceptable_recovery_lag = 50
    answer = desk.turn("a")
    assert answer.acceptable_recovery_lag == 50
    desk.settle("a", "b")
    assert roles(desk, "b") == [{2}, set(), {3}]
    desk.settings.group_streams_num_warmup_replicas = 0
    desk.settle("a", "b")
    assert roles(desk, "b") == [{2, 3}, set(), set()]
    desk.settings.group_streams_task_offset_interval_ms = 7
    assert desk.turn("a").task_offset_interval_ms == 7


def test_a_member_that_does_not_report_gets_its_tasks_immediately() -> None:
    desk = started("a")
    desk.settle("a", "b")
    assert roles(desk, "b") == [{2, 3}, set(), set()]


def test_warm_up_tasks_survive_a_load() -> None:
    desk = warming()
    before = streams_facts(desk.group)
    desk.reload()
    assert streams_facts(desk.group) == before
    desk.settle("a", "b")
    assert roles(desk, "b") == [set(), set(), {2, 3}]
    desk.turn("b", **lag(5, 5, 2, 3))
    desk.settle("a", "b")
    assert roles(desk, "b") == [{2, 3}, set(), set()]


def test_a_load_in_between_leaves_no_member_waiting() -> None:
    desk = started("a", assignment_interval_ms=1_000)
    desk.turn("b", **lag(0, 0))
    desk.now_ms += 1_000
    desk.turn("a")
    desk.turn("a")
    # Member a has reached the epoch in which it keeps its tasks, b has no warm-up task yet.
    assert desk.group.members["a"].is_at(desk.group.target_epoch)
    assert roles(desk, "a") == [{0, 1, 2, 3}, set(), set()]
    desk.reload()
    desk.settle("a", "b")
    assert state(desk) is StreamsState.STABLE
    assert roles(desk, "b") == [{2, 3}, set(), set()]


def test_a_report_before_all_members_have_their_tasks_takes_effect_later() -> None:
    desk = warming(num_warmup_replicas=1)
    desk.turn("c", **lag(0, 0))
    desk.reload()
    desk.turn("a")
    assert state(desk) is StreamsState.RECONCILING
    desk.turn("b", **lag(5, 5, 2))
    desk.settle("a", "b", "c")
    assert roles(desk, "b")[0] == {2}


def test_a_static_member_that_is_replaced_keeps_its_warm_up_tasks() -> None:
    desk = started("a")
    desk.turn("b", instance_id="i", process_id="p", **lag(0, 0))
    desk.settle("a")
    while state(desk) is not StreamsState.STABLE:
        desk.turn("a")
        desk.turn("b", instance_id="i")
    assert roles(desk, "b") == [set(), set(), {2, 3}]
    epoch = desk.group.epoch
    desk.beat("b", -2, instance_id="i")
    desk.turn("c", instance_id="i", process_id="p", **lag(0, 0))
    assert desk.group.epoch == epoch
    assert roles(desk, "c") == [set(), set(), {2, 3}]
    assert desk.group.refined is not None
    assert desk.group.refined.tasks.keys() == {"a", "c"}


def test_client_tags_that_are_missing() -> None:
    desk = started("a")
    desk.settings.group_streams_rack_aware_assignment_tags = ["zone", "rack"]
    epoch = desk.group.epoch
    answer = desk.turn("a", client_tags=[KeyValue("rack", "r")])
    assert [(each.status_code, each.status_detail) for each in answer.status or ()] == [
        (
            6,
            "Missing required client tags for rack-aware standby assignment: [zone]. Configure "
            "them via 'client.tag.<tagKey>' in your Streams config.",
        )
    ]
    assert desk.group.epoch == epoch + 1
    assert desk.group.configs["rack.aware.assignment.tags"] == "zone,rack"
    # A client that does not know the status gets none.
    assert codes(desk.turn("a", version=0)) == []
    assert codes(desk.turn("a", client_tags=[KeyValue("rack", "r"), KeyValue("zone", "z")])) == []


def describe(desk: StreamsDesk) -> Any:
    return desk.ask(StreamsGroupDescribeRequest(["g"])).groups[0]


def test_what_is_described() -> None:
    desk = StreamsDesk()
    desk.turn(
        "a",
        instance_id="i",
        rack_id="r",
        client=Client("me", "/1"),
        client_tags=[KeyValue("zone", "z")],
        user_endpoint=Endpoint("h", 1),
    )
    found = describe(desk)
    assert (found.group_epoch, found.assignment_epoch, found.group_state) == (2, 2, "Stable")
    (member,) = found.members
    assert (member.instance_id, member.rack_id, member.client_id, member.client_host) == (
        "i", "r", "me", "/1",
    )  # fmt: skip
    assert (member.process_id, member.topology_epoch, member.is_classic) == ("process-a", 0, False)
    assert (member.user_endpoint, member.client_tags) == (
        Endpoint("h", 1), [KeyValue("zone", "z")],
    )  # fmt: skip
    # Without its topics a topology has the numbers of partitions that the application gave.
    desk.topics.clear()
    desk.turn("a")
    found = describe(desk)
    assert found.group_state == "NotReady"
    assert [each.subtopology_id for each in found.topology.subtopologies] == ["0", "1"]
    assert found.topology.subtopologies[1].state_changelog_topics[0].partitions == 0


def test_offsets_of_members() -> None:
    desk = started("a", "b")
    epoch = desk.group.members["a"].epoch

    def commit(partition: int, member: str, at: int, topic: str = "t", version: int = 9) -> int:
        request = commit_of({(topic, partition): 5}, generation=at, member=member)
        answer = desk.ask(request, version)
        return int(answer.topics[0].partitions[0].error_code)

    assert commit(0, "a", epoch) == E.NONE
    assert commit(3, "a", epoch) == E.NONE  # as in Kafka: the epoch alone counts
    assert commit(0, "a", epoch, version=8) == E.UNSUPPORTED_VERSION
    assert commit(0, "a", epoch + 1) == E.STALE_MEMBER_EPOCH
    # With an older epoch only of tasks that it got before.
    assert commit(0, "a", 2) == E.NONE
    assert commit(0, "a", 1) == E.STALE_MEMBER_EPOCH
    assert commit(3, "a", 2) == E.STALE_MEMBER_EPOCH
    assert commit(0, "a", 2, "other") == E.STALE_MEMBER_EPOCH
    assert commit(0, "x", epoch) == E.UNKNOWN_MEMBER_ID
    assert desk.group.is_subscribed("t")
    assert not desk.group.is_subscribed("c")


def join(desk: StreamsDesk, member: str = "m") -> Any:
    request = JoinGroupRequest(
        "g", 6_000, 6_000, member, None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    )
    return desk.ask(request, 3)


def test_other_protocols_do_not_join() -> None:
    desk = started("a")
    assert join(desk, "").error_code == E.INCONSISTENT_GROUP_PROTOCOL
    beat = ConsumerGroupHeartbeatRequest("g", "m", 0, None, None, 1, ["t"], None, None, [])
    assert desk.ask(beat).error_code == E.GROUP_ID_NOT_FOUND
    shared = ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"])
    assert desk.ask(shared).error_code == E.GROUP_ID_NOT_FOUND
    leave = LeaveGroupRequest("g", members=[MemberIdentity("a")])
    assert desk.ask(leave, 5).members[0].error_code == E.UNKNOWN_MEMBER_ID
    desk.beat("a", -1)
    # An empty group becomes a classic one.
    assert desk.ask(beat).error_code == E.GROUP_ID_NOT_FOUND
    request = JoinGroupRequest(
        "g", 6_000, 6_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    )
    desk.ask(request, 3)
    assert "g" in desk.shard.groups
    assert not desk.shard.streams_groups


def test_an_empty_classic_group_becomes_a_streams_group() -> None:
    desk = StreamsDesk()
    desk.ask(commit_of({("t", 0): 7}), 9)
    assert "g" in desk.shard.groups
    assert desk.beat("a", 3).error_code == E.GROUP_ID_NOT_FOUND
    desk.beat("a")
    assert not desk.shard.groups
    assert desk.shard.offsets.committed_offsets("g")["t"][0].offset == 7  # KAFKA-20254
    assert not any(isinstance(step, GroupRecord) for step in desk.decision.steps)
    desk.reload()
    assert desk.group.members.keys() == {"a"}


def test_a_group_of_another_type_refuses_members() -> None:
    desk = StreamsDesk()
    desk.ask(ConsumerGroupHeartbeatRequest("g", "m", 0, None, None, 1, ["t"], None, None, []))
    answer = desk.beat("a")
    assert (answer.error_code, answer.error_message) == (
        E.GROUP_ID_NOT_FOUND, "Group g is not a streams group.",
    )  # fmt: skip
    described = desk.ask(StreamsGroupDescribeRequest(["g", "none"])).groups
    assert [each.error_message for each in described] == [
        "Group g is not a streams group.", "Group none not found.",
    ]  # fmt: skip


def test_a_group_is_deleted_or_expires() -> None:
    desk = started("a")
    assert desk.ask(DeleteGroupsRequest(["g"])).results[0].error_code == E.NON_EMPTY_GROUP
    desk.do(desk.shard.decide_expiry("g", desk.now_ms + 10**10))
    desk.beat("a", -1)
    desk.reload()
    assert desk.group.topology is not None
    desk.ask(DeleteGroupsRequest(["g"]))
    assert kinds(desk) == [K.TARGET, K.GROUP, K.TOPOLOGY]
    assert not desk.shard.streams_groups
    desk.reload()
    assert not desk.shard.streams_groups
    desk.clients.clear()
    desk.settle("b")
    desk.beat("b", -1)
    desk.do(desk.shard.decide_expiry("g", desk.now_ms))
    assert not desk.shard.streams_groups


@pytest.mark.parametrize("how", [{}, {"compacted": True}, {"snapshot": True}])
def test_a_group_is_loaded_as_it_was(how: dict[str, bool]) -> None:
    desk = StreamsDesk()
    desk.settings.group_streams_num_standby_replicas = 1
    for member in ("a", "b", "c"):
        desk.turn(member, topology=stateful(), instance_id=f"i-{member}")
    desk.turn("a")
    desk.turn("b")
    before = streams_facts(desk.group)
    desk.reload(**how)
    assert streams_facts(desk.group) == before
    assert {key for _, key in desk.timers} >= {session(member) for member in ("a", "b", "c")}
    desk.settle("a", "b", "c")


def test_a_large_group_is_assigned_in_parts() -> None:
    desk = StreamsDesk()
    desk.topics.update(t=300, r=300, c=300)
    answer = desk.turn("a")
    assert not answer.active_tasks
    assert len(desk.computing) == 1
    # Meanwhile heartbeats do not gather its input again, which takes time with the members.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafkawire.groups.streams.heartbeat.gather_input", None)
        assert codes(desk.turn("b")) == []
    assert len(desk.computing) == 1
    desk.settle("a", "b")
    assert {name: len(tasks) for name, tasks in desk.active().items()} == {"a": 300, "b": 300}
