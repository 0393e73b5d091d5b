"""Requests to the coordinator of groups."""

from __future__ import annotations

from typing import Any

from kafkawire.messages import (
    delete_groups,
    describe_groups,
    join_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from tests.java.calls.wire import Owner, Part, Wire, codes_of


class GroupCalls(Wire):
    """Offsets of groups, in transactions and outside of them."""

    def txn_commit(
        self, owner: Owner, group: str, offsets: dict[Part, int], version: int = 3, **fields: Any
    ) -> list[int]:
        """TxnOffsetCommit; return the codes in the order of `offsets`. `note`: the metadata."""
        note = fields.pop("note", "")
        topics: dict[str, list[txn_offset_commit.TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), offset in offsets.items():
            row = txn_offset_commit.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=note
            )
            topics.setdefault(topic, []).append(row)
        rows = [
            txn_offset_commit.TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
        request = txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=owner.id or "",
            group_id=group,
            producer_id=owner.pid,
            producer_epoch=owner.epoch,
            topics=rows,
            **fields,
        )
        answer = self.final(
            lambda: self.ask("TxnOffsetCommit", request, version),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        return codes_of(answer.topics, list(offsets))

    def commit_plainly(self, group: str, part: Part, offset: int) -> int:
        """OffsetCommit outside of a transaction, without a member; return the code."""
        row = offset_commit.OffsetCommitRequestPartition(
            partition_index=part[1], committed_offset=offset
        )
        named = offset_commit.OffsetCommitRequestTopic(name=part[0], partitions=[row])
        request = offset_commit.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, topics=[named]
        )
        answer = self.final(
            lambda: self.ask("OffsetCommit", request, 8),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        return int(answer.topics[0].partitions[0].error_code)

    def committed(
        self, group: str, part: Part, *, stable: bool = False, version: int = 7
    ) -> tuple[int, int]:
        """OffsetFetch; return (code, offset)."""
        named = offset_fetch.OffsetFetchRequestTopic(name=part[0], partition_indexes=[part[1]])
        request = offset_fetch.OffsetFetchRequest(
            group_id=group, topics=[named], require_stable=stable
        )
        answer = self.final(
            lambda: self.ask("OffsetFetch", request, version), lambda answer: answer.error_code
        )
        row = answer.topics[0].partitions[0]
        return row.error_code, row.committed_offset

    def join(self, group: str, instance: str | None = None, member: str = "") -> str:
        """Join, without the assignment, once all members have; return the member id."""
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"a")
        request = join_group.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[protocol],
        )
        version = 3 if instance is None else 5  # v4+ asks dynamic members to repeat it
        answer = self.final(
            lambda: self.ask("JoinGroup", request, version), lambda answer: answer.error_code
        )
        assert answer.error_code == 0
        return str(answer.member_id)

    def sync(self, group: str, member: str, generation: int) -> None:
        """Assign all to the only member: the group is stable."""
        row = sync_group.SyncGroupRequestAssignment(member_id=member, assignment=b"all")
        request = sync_group.SyncGroupRequest(
            group_id=group, generation_id=generation, member_id=member, assignments=[row]
        )
        assert self.ask("SyncGroup", request, 2).error_code == 0

    def delete_offsets(self, group: str, part: Part) -> int:
        """OffsetDelete; return the code of the partition."""
        row = offset_delete.OffsetDeleteRequestPartition(partition_index=part[1])
        named = offset_delete.OffsetDeleteRequestTopic(name=part[0], partitions=[row])
        request = offset_delete.OffsetDeleteRequest(group_id=group, topics=[named])
        return int(self.ask("OffsetDelete", request, 0).topics[0].partitions[0].error_code)

    def delete_group(self, group: str) -> int:
        """DeleteGroups; return the code."""
        request = delete_groups.DeleteGroupsRequest(groups_names=[group])
        return int(self.ask("DeleteGroups", request, 2).results[0].error_code)

    def group_state(self, group: str) -> str:
        """Return the state of a group, which is not compared."""
        request = describe_groups.DescribeGroupsRequest(groups=[group])
        return str(self.send("DescribeGroups", request, 5).groups[0].group_state)
