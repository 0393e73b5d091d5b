"""The draft of a decision: a copy of the group to which each step is applied immediately.

Rules such as "when the last member has joined, the generation begins" need the future state of the
group. The group itself is unchanged until the decision is executed.

Used by kafkawire.groups.classic.join, kafkawire.groups.classic.rebalance and
kafkawire.groups.classic.sync only.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.model.decision import CancelTimer, Decision, Reply, SetTimer, Step, session
from kafkawire.groups.model.events import Event
from kafkawire.groups.model.member import Member
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.request import Response
from kafkawire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kafkawire.messages.stored import GroupMetadataValue, MemberMetadata
from kafkawire.messages.sync_group import SyncGroupResponse


class Draft:
    """A decision in progress. `group` is the state of the group after the steps so far."""

    __slots__ = ("_copied", "decision", "group", "now_ms")

    def __init__(self, group: ClassicGroup, now_ms: int) -> None:
        self.group = group
        self.now_ms = now_ms
        self.decision = Decision(group.group_id)
        self._copied = False

    def do(self, step: Step) -> None:
        """Add a step and apply it to the copy."""
        # Requests without steps, such as repeated ones, never copy the group.
        if not self._copied:
            self.group = self.group.copy()
            self._copied = True
        self.decision.steps.append(step)
        self.group.apply(step)

    def log(self, event: Event) -> None:
        self.decision.events.append(event)

    def reply(self, token: int | None, body: Response) -> None:
        """Answer a request; None: none is parked."""
        if token is not None:
            self.decision.effects.append(Reply(token, body))

    def timer(self, key: str, delay_ms: int) -> None:
        self.decision.effects.append(SetTimer(key, self.now_ms + delay_ms))

    def cancel(self, key: str) -> None:
        self.decision.effects.append(CancelTimer(key))

    def expect(self, member: Member) -> None:
        """Give the member a new session, within which its next heartbeat must arrive."""
        self.timer(session(member.id), member.session_timeout_ms)

    def group_record(self, assignments: dict[str, bytes]) -> GroupRecord:
        """Return the record of the group at the end of a round, members in join order. Members
        without an entry in `assignments` get an empty one."""
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
    return JoinGroupResponse(error_code=int(code), member_id=member_id)


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=int(code))


def answer_join(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    # Only the leader assigns, so only it gets the metadata of all members.
    leads = member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member_id,
        members=_roll(group) if leads else [],
    )


def answer_sync(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
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
