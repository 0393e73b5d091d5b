"""A group as described by DescribeGroups and ListGroups. Pure.

Used by kafkawire.groups.shard. The handler adds authorized operations if the request has the flag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.model.states import GroupState
from kafkawire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from kafkawire.messages.list_groups import ListedGroup

NOT_FOUND_FROM = 6  # DescribeGroups: GROUP_ID_NOT_FOUND instead of the state Dead (KIP-1043)
CLASSIC = "classic"


def describe_group(group_id: str, group: ClassicGroup | None, version: int) -> DescribedGroup:
    """Describe one group; None: there is no such group."""
    if group is None:
        answer = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= NOT_FOUND_FROM:
            answer.error_code = int(ErrorCode.GROUP_ID_NOT_FOUND)
            answer.error_message = f"Group {group_id} not found."
        return answer
    # Members' metadata and the protocol are shown only while Stable: during a round they are
    # neither the old nor the new ones (as in Kafka).
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[
            DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=(member.metadata(protocol) or b"") if protocol else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def list_groups(
    groups: Iterable[ClassicGroup], states: Collection[str], types: Collection[str]
) -> list[ListedGroup]:
    """List the groups in one of `states` and of one of `types`; an empty filter matches all."""
    # Filters ignore case, and an unknown state or type matches nothing (as in Kafka).
    wanted = {state.lower() for state in states}
    if types and CLASSIC not in {kind.lower() for kind in types}:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in groups
        if not wanted or group.state.value.lower() in wanted
    ]
