"""The desk a decision is written on: a copy of the group that takes each step at once.

Rules such as "when the last member has joined, the generation begins" need to see the group as
it will be. A Draft copies the group when the first step is decided, applies every step to the
copy and notes it, so the group itself stays untouched until the decision is carried out. The
copy is shallow (members are immutable), and requests that change nothing never make one.

Used by kafkawire.groups.classic.join, kafkawire.groups.classic.rebalance and
kafkawire.groups.classic.sync only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.decision import CancelTimer, Decision, Reply, SetTimer, Step, session
from kafkawire.groups.records import GroupRecord
from kafkawire.groups.request import Response
from kafkawire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kafkawire.messages.stored import GroupMetadataValue, MemberMetadata
from kafkawire.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from kafkawire.groups.classic.group import ClassicGroup
    from kafkawire.groups.classic.member import Member


class Draft:
    """A decision in the making. `group` is what the group will be after the steps so far."""

    __slots__ = ("_copied", "decision", "group", "now_ms")

    def __init__(self, group: ClassicGroup, now_ms: int) -> None:
        self.group = group
        self.now_ms = now_ms
        self.decision = Decision(group.group_id)
        self._copied = False

    def do(self, step: Step) -> None:
        """Decide a step: note it and see the group with it."""
        if not self._copied:
            self.group = self.group.copy()
            self._copied = True
        self.decision.steps.append(step)
        self.group.apply(step)

    def reply(self, token: int | None, body: Response) -> None:
        """Answer a request; None is a member that has none parked."""
        if token is not None:
            self.decision.effects.append(Reply(token, body))

    def timer(self, key: str, delay_ms: int) -> None:
        self.decision.effects.append(SetTimer(key, self.now_ms + delay_ms))

    def cancel(self, key: str) -> None:
        self.decision.effects.append(CancelTimer(key))

    def expect(self, member: Member) -> None:
        """Give the member a new session: its next heartbeat has to come within it."""
        self.timer(session(member.id), member.session_timeout_ms)

    def record(self, assignments: dict[str, bytes]) -> GroupRecord:
        """The group as Kafka writes it at the end of a round, members in order of joining.
        Members without an entry in `assignments` get the empty one."""
        group = self.group
        members = [
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol) or b"",
                assignment=assignments.get(member.id, b""),
            )
            for member in group.members.values()
        ]
        return GroupRecord(
            group.group_id,
            GroupMetadataValue(
                protocol_type=group.protocol_type or "",
                generation=group.generation,
                protocol=group.protocol,
                leader=group.leader,
                current_state_timestamp=self.now_ms,
                members=members,
            ),
        )


def join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """A JoinGroup answer without a generation."""
    return JoinGroupResponse(error_code=int(code), member_id=member_id)


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    """A SyncGroup answer without an assignment."""
    return SyncGroupResponse(error_code=int(code))


def joined(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """The current generation as one member hears of it; the leader hears everybody's metadata."""
    leads = member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member_id,
        members=_roll(group) if leads else [],
    )


def assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """A member's assignment in the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


def _roll(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol) or b"",
        )
        for member in group.members.values()
    ]
