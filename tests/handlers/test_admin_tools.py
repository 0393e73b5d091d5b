"""APIs that admin tools call on any broker, answered like a Kafka broker without security.

Covers: kafkawire.handlers.acl_wire, kafkawire.handlers.create_acls,
kafkawire.handlers.delete_acls,
kafkawire.handlers.describe_acls, kafkawire.handlers.elect_leaders.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from kafkawire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kafkawire.messages.describe_acls import DescribeAclsRequest
from kafkawire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.kit.admin import FakeBroker, call
from tests.kit.configs import make

VERSIONS = range(1, 4)


@pytest.mark.parametrize("version", VERSIONS)
async def test_acl_requests_return_security_disabled(version: int) -> None:
    broker = FakeBroker()
    found = await call(broker, DescribeAclsRequest(1, None, 1, None, None, 1, 1), version)
    assert (found.error_code, found.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert found.error_message
    made = await call(
        broker, CreateAclsRequest([AclCreation(2, "t", 3, "User:a", "*", 3, 3)] * 3), version
    )
    assert [row.error_code for row in made.results] == [ErrorCode.SECURITY_DISABLED] * 3
    gone = await call(
        broker, DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)] * 200), version
    )
    assert [row.error_code for row in gone.filter_results] == [ErrorCode.SECURITY_DISABLED] * 200
    assert all(row.error_message and not row.matching_acls for row in gone.filter_results)
    assert (await call(broker, CreateAclsRequest([]), version)).results == []


@pytest.mark.parametrize("version", range(3))
async def test_elect_leaders_returns_election_not_needed(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", 2)
    wanted = [TopicPartitions("t", [0, 1, 2]), TopicPartitions("no", [0] * 150)]
    answer = await call(broker, ElectLeadersRequest(topic_partitions=wanted), version)
    found = [
        (result.topic, row.partition_id, row.error_code)
        for result in answer.replica_election_results
        for row in result.partition_result
    ]
    assert found[:3] == [
        ("t", 0, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 1, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert found[3:] == [("no", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 150
    answer = await call(broker, ElectLeadersRequest(topic_partitions=None), version)
    (result,) = answer.replica_election_results
    assert (answer.error_code, result.topic, result.partition_result) == (0, "t", [])


async def test_unknown_election_type_is_refused() -> None:
    request = ElectLeadersRequest(7, [TopicPartitions("t", [0])])
    assert (await call(FakeBroker(), request, 1)).error_code == ErrorCode.INVALID_REQUEST
