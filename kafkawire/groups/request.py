"""Requests to the group state machines, and their settings.

A GroupRequest is a decoded request with what the machine may know of its sender: the token to
answer under, the version, who sent it, and a fresh id in case a member id has to be made (machines
have no randomness of their own). Settings is the part of BrokerConfig that the machines read;
they read it again each time, so a dynamic change holds from the next request on.

Made by kafkawire.groups.service; `error_answer` is also used by kafkawire.groups.coordinator when a
request cannot be decided at all (still loading) or its record cannot be appended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kafkawire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kafkawire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kafkawire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kafkawire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

Request = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequestGroup
    | OffsetDeleteRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DeleteGroupsRequest
)
Response = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponseGroup
    | OffsetDeleteResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DeleteGroupsResponse
)
RequestT = TypeVar("RequestT", bound=Request, covariant=True)


class Settings(Protocol):
    """The settings of BrokerConfig that groups obey; names are Kafka's."""

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_min_session_timeout_ms(self) -> int: ...
    @property
    def group_max_session_timeout_ms(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...
    @property
    def offset_metadata_max_bytes(self) -> int: ...
    @property
    def offsets_retention_minutes(self) -> int: ...
    @property
    def offsets_retention_check_interval_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request: its client id and the address it came from."""

    id: str | None
    host: str


@dataclass(slots=True)
class GroupRequest(Generic[RequestT]):
    """One request to a machine. `fresh_id` must be new in each JoinGroup without member id."""

    token: int
    version: int
    request: RequestT
    client: Client
    fresh_id: str = ""


def error_answer(request: Request, code: ErrorCode) -> Response:
    """The response that says only `code`, with the fields Kafka fills in with it."""
    return _ERROR[type(request)](request, int(code))


def append_error(code: ErrorCode) -> ErrorCode:
    """Map an append error to the error code a group client expects (Kafka:
    GroupCoordinatorService.handleOperationException); what is not listed is our own fault."""
    return _APPEND.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_APPEND = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def _join(request: JoinGroupRequest, code: int) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=request.member_id)


def _commit(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(request: DescribeGroupsRequest, code: int) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.groups]
    )


def _delete(request: DeleteGroupsRequest, code: int) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=code)
            for group_id in request.groups_names
        ]
    )


_ERROR: dict[type, Callable[..., Response]] = {
    JoinGroupRequest: _join,
    SyncGroupRequest: lambda request, code: SyncGroupResponse(error_code=code),
    HeartbeatRequest: lambda request, code: HeartbeatResponse(error_code=code),
    LeaveGroupRequest: lambda request, code: LeaveGroupResponse(error_code=code),
    OffsetCommitRequest: _commit,
    OffsetFetchRequestGroup: lambda request, code: OffsetFetchResponseGroup(
        group_id=request.group_id, error_code=code
    ),
    OffsetDeleteRequest: lambda request, code: OffsetDeleteResponse(error_code=code),
    DescribeGroupsRequest: _describe,
    ListGroupsRequest: lambda request, code: ListGroupsResponse(error_code=code),
    DeleteGroupsRequest: _delete,
}
