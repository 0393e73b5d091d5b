"""Groups in Apache Kafka and in ours: each response compared, field by field.

Fields that are not compared are given with the request as `but`: the list of differences in
responses.
"""

from __future__ import annotations

import uuid
from typing import Any

from kafkawire.messages import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tests.java.twins import Twins


class Group:
    """One group in both brokers; each assigns its own member ids."""

    def __init__(self, twins: Twins, topic: str) -> None:
        self.twins = twins
        self.topic = topic
        self.id = f"g-{uuid.uuid4().hex[:8]}"
        self.members = ["", ""]

    def join(self, version: int = 9, *, member: str | None = None, **fields: Any) -> None:
        row = join_group.JoinGroupRequestProtocol(
            name=fields.pop("protocol", "range"), metadata=fields.pop("data", b"a")
        )
        values = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5_000, **fields}
        answers = self.twins.ask(
            "JoinGroup",
            lambda index: join_group.JoinGroupRequest(
                group_id=self.id,
                member_id=self.members[index] if member is None else member,
                protocol_type="consumer",
                protocols=[row],
                **values,
            ),
            version,
        )
        if answers[0].member_id and answers[0].error_code in (0, 79):
            self.members = [answer.member_id for answer in answers]

    def sync(self, generation: int, version: int = 5, **fields: Any) -> None:
        values = {"protocol_type": "consumer", "protocol_name": "range", **fields}
        self.twins.ask(
            "SyncGroup",
            lambda index: sync_group.SyncGroupRequest(
                group_id=self.id,
                generation_id=generation,
                member_id=self.members[index],
                assignments=[
                    sync_group.SyncGroupRequestAssignment(
                        member_id=self.members[index], assignment=b"share"
                    )
                ],
                **values,
            ),
            version,
        )

    def beat(self, generation: int, member: str | None = None, instance: str | None = None) -> None:
        self.twins.ask(
            "Heartbeat",
            lambda index: heartbeat.HeartbeatRequest(
                group_id=self.id,
                generation_id=generation,
                member_id=self.members[index] if member is None else member,
                group_instance_id=instance,
            ),
            4,
        )

    def commit(self, generation: int, member: str | None = None, **fields: Any) -> None:
        row = offset_commit.OffsetCommitRequestPartition(
            partition_index=fields.pop("partition", 0),
            committed_offset=5,
            committed_leader_epoch=0,
            committed_metadata=fields.pop("note", "here"),
        )
        named = offset_commit.OffsetCommitRequestTopic(
            name=fields.pop("topic", self.topic), partitions=[row]
        )
        self.twins.ask(
            "OffsetCommit",
            lambda index: offset_commit.OffsetCommitRequest(
                group_id=self.id,
                generation_id_or_member_epoch=generation,
                member_id=self.members[index] if member is None else member,
                topics=[named],
                **fields,
            ),
            8,
        )

    def describe(self) -> None:
        for version in (0, 5, 6):
            ask = describe_groups.DescribeGroupsRequest(groups=[self.id])
            self.twins.ask("DescribeGroups", ask, version)

    def leave(self, member: str | None = None, instance: str | None = None) -> None:
        self.twins.ask(
            "LeaveGroup",
            lambda index: leave_group.LeaveGroupRequest(
                group_id=self.id,
                members=[
                    leave_group.MemberIdentity(
                        member_id=self.members[index] if member is None else member,
                        group_instance_id=instance,
                    )
                ],
            ),
            5,
        )


def test_group_requests_match(twins: Twins, topic: str) -> None:
    group = Group(twins, topic)
    group.describe()
    group.join()  # MEMBER_ID_REQUIRED; Kafka varies in whether the group exists yet
    group.join()
    for say in (group.beat, group.commit):
        say(1)
    group.commit(-1, "")
    group.describe()
    group.sync(7)
    group.sync(1, protocol_name="other")
    group.sync(1)
    group.beat(1)
    group.beat(0)
    group.beat(1, "nobody")
    group.beat(1, None, "i")
    group.sync(1)
    group.commit(1)
    group.commit(0)
    group.commit(1, "nobody")
    group.commit(1, group_instance_id="i")
    group.commit(1, note="n" * 5000)
    group.commit(1, topic="none")
    group.commit(1, partition=9)
    offsets(group)
    group.join(data=b"other")
    group.sync(2)
    group.describe()
    group.join(3, member="", protocol="strange")
    group.join(3, member="ghost")
    group.leave("x", "y")
    group.leave()
    group.describe()
    group.commit(2)
    group.commit(-1, "")
    group.beat(2)
    offsets(group)
    for groups in ([group.id, "none", ""], [group.id]):
        ask = delete_groups.DeleteGroupsRequest(groups_names=groups)
        twins.ask("DeleteGroups", ask, 2)


def offsets(group: Group) -> None:
    """Check committed offsets, and that they cannot be deleted while the topic is subscribed, or
    can be."""
    for version in (2, 5, 7):
        ask = offset_fetch.OffsetFetchRequest(group_id=group.id, topics=None)
        group.twins.ask("OffsetFetch", ask, version)
    row = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    named = offset_delete.OffsetDeleteRequestTopic(name=group.topic, partitions=[row])
    request = offset_delete.OffsetDeleteRequest(group_id=group.id, topics=[named])
    group.twins.ask("OffsetDelete", request, 0)


def test_static_member_requests_match(twins: Twins, topic: str) -> None:
    group = Group(twins, topic)
    group.join(group_instance_id="one")
    group.sync(1, group_instance_id="one")
    first = list(group.members)
    group.join(member="", group_instance_id="one")  # restarted, without a rebalance
    group.join(7, member="", group_instance_id="one")
    for members in (first, group.members):
        group.members = list(members)
        group.beat(1, None, "one")
        group.sync(1, group_instance_id="one")
    group.describe()
    group.join(member="", group_instance_id="one", data=b"changed")
    group.join(member="stranger", group_instance_id="two")
    group.leave("", "one")
    group.describe()
