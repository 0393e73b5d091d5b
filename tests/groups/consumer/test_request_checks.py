"""The checks of a heartbeat by itself: Kafka's order and texts.

Covers: kafkawire.groups.consumer.heartbeat.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.consumer.heartbeat import check_request
from kafkawire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kafkawire.messages.consumer_group_heartbeat import TopicPartitions as Owned


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


ACCEPTED = [
    ({"member_id": ""}, 0),
    ({"member_epoch": 3, "topic_partitions": None, "rebalance_timeout_ms": -1}, 1),
    ({"member_epoch": -1, "topic_partitions": None}, 1),
    ({"member_epoch": -2, "instance_id": "i"}, 1),
    ({"subscribed_topic_names": None, "subscribed_topic_regex": ""}, 1),
    ({"subscribed_topic_names": []}, 1),
    ({"server_assignor": "range"}, 1),
]


@pytest.mark.parametrize(("fields", "version"), ACCEPTED)
def test_accepted_heartbeats(fields: dict[str, Any], version: int) -> None:
    check_request(heartbeat(**fields), version, BrokerConfig())


NO_SUBSCRIPTION = (
    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
)
REFUSED = [
    ({"member_id": ""}, 1, "MemberId can't be empty."),
    ({"member_id": " \t", "group_id": ""}, 1, "MemberId can't be empty."),
    ({"member_id": "", "member_epoch": 1}, 0, "MemberId can't be empty."),
    ({"member_id": "", "member_epoch": -1}, 0, "MemberId can't be empty."),
    ({"group_id": ""}, 1, "GroupId can't be empty."),
    ({"instance_id": "", "rack_id": ""}, 1, "InstanceId can't be empty."),
    ({"rack_id": " "}, 1, "RackId can't be empty."),
    ({"rebalance_timeout_ms": -1}, 1, "RebalanceTimeoutMs must be provided in first request."),
    ({"topic_partitions": None}, 1, "TopicPartitions must be empty when (re-)joining."),
    (
        {"topic_partitions": [Owned(b"t" * 16, [0])]},
        1,
        "TopicPartitions must be empty when (re-)joining.",
    ),
    ({"subscribed_topic_names": None}, 1, NO_SUBSCRIPTION),
    ({"member_epoch": -2}, 1, "InstanceId can't be null."),
    ({"member_epoch": -3}, 1, "MemberEpoch is invalid."),
]


@pytest.mark.parametrize(("fields", "version", "message"), REFUSED)
def test_refused_heartbeats(fields: dict[str, Any], version: int, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_request(heartbeat(**fields), version, BrokerConfig())
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, message)


def test_unknown_assignor_is_refused_after_the_other_fields() -> None:
    config = BrokerConfig({"group.consumer.assignors": "range"})
    with pytest.raises(KafkaError, match=r"uniform is not supported. Supported assignors: range."):
        check_request(heartbeat(server_assignor="uniform"), 1, config)
    with pytest.raises(KafkaError, match="RackId"):
        check_request(heartbeat(server_assignor="uniform", rack_id=""), 1, config)
