"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the feature and the rights, which the handlers
check before the group decides.

Covers: kafkawire.handlers.consumer_group_heartbeat, kafkawire.handlers.consumer_group_describe,
kafkawire.handlers.group_descriptions.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.compile import decode
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.model.request import CONSUMER_DESCRIBE, CONSUMER_HEARTBEAT, Client
from kafkawire.handlers.consumer_group_heartbeat import answer_unchanged
from kafkawire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind
from tests.kit.admin import FakeBroker, call


class FakeGroups:
    """Records requests; a heartbeat gets epoch 1, a described group is that of `described`."""

    def __init__(self, *described: DescribedGroup) -> None:
        self.asked: list[tuple[Client, int, Any]] = []
        self.now: list[tuple[Client, Any]] = []
        self.described = {group.group_id: group for group in described}

    def handle_request(self, kind: Any, client: Client, version: int, request: Any) -> Any:
        assert kind is CONSUMER_HEARTBEAT
        self.asked.append((client, version, request))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result(ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=1))
        return answer

    def consumer_heartbeat_now(
        self, client: Client, request: Any
    ) -> ConsumerGroupHeartbeatResponse:
        self.now.append((client, request))
        return ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=1)

    async def describe_each(
        self, kind: Any, client: Client, version: int, group_ids: list[str]
    ) -> list[DescribedGroup]:
        assert kind is CONSUMER_DESCRIBE
        self.asked.append((client, version, group_ids))
        return [self.described[group_id] for group_id in group_ids]


class Rights:
    """The operations that a client is allowed."""

    def __init__(self, *allowed: tuple[Operation, ResourceKind, str]) -> None:
        self.allowed = allowed

    def may(self, *asked: Any) -> bool:
        return asked in self.allowed

    def authorized_operations(self, kind: ResourceKind, name: str) -> int:
        return 1 << Operation.DESCRIBE


READ_GROUP = (Operation.READ, ResourceKind.GROUP, "g")
DESCRIBE_GROUP = (Operation.DESCRIBE, ResourceKind.GROUP, "g")


def describe_topic(name: str) -> tuple[Operation, ResourceKind, str]:
    return Operation.DESCRIBE, ResourceKind.TOPIC, name


def heartbeat(**changed: Any) -> ConsumerGroupHeartbeatRequest:
    """A member "m" joins group "g", with these other fields."""
    fields: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**{**fields, **changed})


def broker_with(*described: DescribedGroup, **settings: str) -> tuple[FakeBroker, FakeGroups]:
    broker, groups = FakeBroker(**settings), FakeGroups(*described)
    broker.groups = groups  # type: ignore[assignment]
    return broker, groups


@pytest.mark.parametrize("version", [0, 1])
async def test_heartbeat_is_passed_to_the_group(version: int) -> None:
    broker, groups = broker_with()
    answer = await call(broker, heartbeat(), version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 1)
    ((client, asked_version, request),) = groups.asked
    assert (client.id, client.host, client.may_describe) == ("client", "/127.0.0.1", None)
    assert (asked_version, request.group_id) == (version, "g")


async def test_feature_is_checked_before_the_rights() -> None:
    broker, groups = broker_with()
    bad = heartbeat(subscribed_topic_names=["t", "secret"])
    for rights, code in (
        (Rights(), E.GROUP_AUTHORIZATION_FAILED),
        (Rights(READ_GROUP, describe_topic("t")), E.TOPIC_AUTHORIZATION_FAILED),
    ):
        assert (await call(broker, bad, 1, rights=rights)).error_code == code
    broker.catalog.finalize_features({"group.version": 0}, 1)
    answer = await call(broker, bad, 1, rights=Rights())
    assert (answer.error_code, answer.error_message) == (E.UNSUPPORTED_VERSION, None)
    assert groups.asked == []


async def test_group_can_ask_which_topics_a_pattern_may_show() -> None:
    broker, groups = broker_with()
    request = heartbeat(subscribed_topic_names=None, subscribed_topic_regex=".*")
    rights = Rights(READ_GROUP, describe_topic("t"))
    assert (await call(broker, request, 1, rights=rights)).error_code == 0
    ((client, _, _),) = groups.asked
    assert client.may_describe is not None
    assert [client.may_describe(name) for name in ("t", "secret")] == [True, False]


def answer_now(broker: FakeBroker, rights: Rights | None) -> ConsumerGroupHeartbeatResponse | None:
    peer = SimpleNamespace(client_id="client", client_host="127.0.0.1", rights=rights)
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    body = answer_unchanged(broker, peer, 1, request)  # type: ignore[arg-type]
    return None if body is None else decode(ConsumerGroupHeartbeatResponse, 1, body)


async def test_unchanged_heartbeat_is_answered_at_once_to_who_may_read_the_group() -> None:
    broker, groups = broker_with()
    for rights in (None, Rights(READ_GROUP)):
        answer = answer_now(broker, rights)
        assert answer is not None
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 1)
    ((client, request), _) = groups.now
    assert (client.id, client.host, request.group_id) == ("client", "/127.0.0.1", "g")
    assert answer_now(broker, Rights()) is None
    broker.catalog.finalize_features({"group.version": 0}, 1)
    assert answer_now(broker, None) is None
    assert len(groups.now) == 2


def group(group_id: str, current: str = "", target: str = "") -> DescribedGroup:
    """A group with a member that has a partition of each of the topics, if named."""
    assignments = [
        Assignment([TopicPartitions(b"t" * 16, name, [0])] if name else [])
        for name in (current, target)
    ]
    member = Member("m", assignment=assignments[0], target_assignment=assignments[1])
    return DescribedGroup(group_id=group_id, group_state="Stable", members=[member])


async def test_groups_are_described() -> None:
    broker, _ = broker_with(group("g", "t"), group("h"))
    request = ConsumerGroupDescribeRequest(["g", "h"], include_authorized_operations=True)
    answer = await call(broker, request, 1)
    assert [(each.group_id, each.error_code) for each in answer.groups] == [("g", 0), ("h", 0)]
    assert answer.groups[0].members[0].assignment.topic_partitions[0].topic_name == "t"
    assert all(each.authorized_operations > 0 for each in answer.groups)
    broker, _ = broker_with(group("g"))
    answer = await call(broker, ConsumerGroupDescribeRequest(["g"]), 0)
    assert answer.groups[0].authorized_operations == -(2**31)


async def test_groups_without_the_right_and_without_a_name_come_first() -> None:
    broker, groups = broker_with(group("g"))
    request = ConsumerGroupDescribeRequest(["", "g", "secret"])
    rights = Rights(DESCRIBE_GROUP, (Operation.DESCRIBE, ResourceKind.GROUP, ""))
    answer = await call(broker, request, 1, rights=rights)
    assert [(each.group_id, each.error_code) for each in answer.groups] == [
        ("secret", E.GROUP_AUTHORIZATION_FAILED),
        ("", E.INVALID_GROUP_ID),
        ("g", 0),
    ]
    assert groups.asked[0][2] == ["g"]


@pytest.mark.parametrize("assigned", [("t", "secret"), ("secret", "t")])
async def test_group_with_a_hidden_topic_is_not_described(assigned: tuple[str, str]) -> None:
    broker, _ = broker_with(group("g", *assigned))
    rights = Rights(DESCRIBE_GROUP, describe_topic("t"))
    (found,) = (await call(broker, ConsumerGroupDescribeRequest(["g"]), 1, rights=rights)).groups
    assert (found.group_id, found.error_code) == ("g", E.TOPIC_AUTHORIZATION_FAILED)
    assert found.error_message.startswith("The group has described topic(s)")
    assert found.members == []
    rights = Rights(DESCRIBE_GROUP, describe_topic("t"), describe_topic("secret"))
    (found,) = (await call(broker, ConsumerGroupDescribeRequest(["g"]), 1, rights=rights)).groups
    assert (found.error_code, len(found.members)) == (0, 1)
