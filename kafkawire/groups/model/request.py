"""Requests to the group state machines, and their settings.

A GroupRequest is a decoded request with its context. Settings is the part of BrokerConfig that the
machines use; it is read for each request, so a dynamic change takes effect with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from kafkawire.codec.configs.group_config import (
    ConsumerGroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from kafkawire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kafkawire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
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
from kafkawire.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from kafkawire.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kafkawire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kafkawire.messages.streams_group_describe import DescribedGroup as DescribedStreamsGroup
from kafkawire.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from kafkawire.log.partition.verification import Guard


@dataclass(frozen=True, slots=True)
class StableOffsetFetch:
    """An OffsetFetch with RequireStable: pending offsets are UNSTABLE_OFFSET_COMMIT."""

    group: OffsetFetchRequestGroup


@dataclass(frozen=True, slots=True)
class VerifiedCommit:
    """A TxnOffsetCommit that the transaction coordinator has verified."""

    commit: TxnOffsetCommitRequest
    guard: Guard | None


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """The end of a transaction, to be written to this partition (part of a WriteTxnMarkers)."""

    marker: TransactionMarker


@dataclass(slots=True)
class MarkerWritten:
    """The result of a WriteMarker: committed, and its pending offsets are current or dropped."""

    error_code: int = 0


@dataclass(frozen=True, slots=True)
class ListShares:
    """A request for the partitions of a share group whose states are initialized."""

    group_id: str


@dataclass(slots=True)
class SharesListed:
    """The partitions by topic id; empty if there is no such group."""

    error_code: int = 0
    partitions: Mapping[bytes, frozenset[int]] = field(default_factory=dict)


@dataclass(slots=True)
class StreamsHeartbeatResult:
    """The response to a StreamsGroupHeartbeat, and the internal topics that are to be created."""

    response: StreamsGroupHeartbeatResponse
    missing: Sequence[CreatableTopic] = ()


Request = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequestGroup
    | StableOffsetFetch
    | VerifiedCommit
    | WriteMarker
    | OffsetDeleteRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DeleteGroupsRequest
    | ConsumerGroupHeartbeatRequest
    | ConsumerGroupDescribeRequest
    | ShareGroupHeartbeatRequest
    | ShareGroupDescribeRequest
    | AlterShareGroupOffsetsRequest
    | DeleteShareGroupOffsetsRequest
    | ListShares
    | StreamsGroupHeartbeatRequest
    | StreamsGroupDescribeRequest
)
Response = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponseGroup
    | TxnOffsetCommitResponse
    | MarkerWritten
    | OffsetDeleteResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DeleteGroupsResponse
    | ConsumerGroupHeartbeatResponse
    | ConsumerGroupDescribeResponse
    | ShareGroupHeartbeatResponse
    | ShareGroupDescribeResponse
    | AlterShareGroupOffsetsResponse
    | DeleteShareGroupOffsetsResponse
    | SharesListed
    | StreamsHeartbeatResult
    | StreamsGroupDescribeResponse
)
RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)
AskedT = TypeVar("AskedT", bound=Request, covariant=True)
AnsweredT = TypeVar("AnsweredT", bound=Response, covariant=True)


class Settings(Protocol):
    """The settings of BrokerConfig for groups; names are Kafka's."""

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
    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Return the effective settings of a group of KIP-848: its own or the broker's."""
        ...

    @property
    def group_consumer_max_size(self) -> int: ...
    @property
    def group_consumer_assignors(self) -> list[str]: ...
    @property
    def group_consumer_migration_policy(self) -> str: ...
    @property
    def group_consumer_regex_refresh_interval_ms(self) -> int: ...
    def share_group_settings(self, group_id: str) -> ShareGroupSettings:
        """Return the effective settings of a share group: its own or the broker's."""
        ...

    @property
    def group_share_max_size(self) -> int: ...
    @property
    def group_share_assignors(self) -> list[str]: ...
    @property
    def group_share_initialize_retry_interval_ms(self) -> int: ...
    def streams_group_settings(self, group_id: str) -> StreamsGroupSettings:
        """Return the effective settings of a streams group: its own or the broker's."""
        ...

    @property
    def group_streams_max_size(self) -> int: ...
    @property
    def group_streams_assignors(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request: its client id and its address. `may_describe`: which topics may be
    shown to it if a pattern matches them; None: all."""

    id: str | None
    host: str
    may_describe: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class RequestKind(Generic[RequestT, ResponseT]):
    """`error` makes an error response, with the fields that Kafka sets with the code."""

    request: type[RequestT]
    response: type[ResponseT]
    error: Callable[[RequestT, int], ResponseT]
    group_of: Callable[[RequestT], str] = attrgetter("group_id")


@dataclass(slots=True)
class GroupRequest(Generic[AskedT, AnsweredT]):
    """One request to a state machine. `fresh_id` must be unique in each JoinGroup without member
    id."""

    kind: RequestKind[AskedT, AnsweredT]
    token: int
    version: int
    request: AskedT
    client: Client
    # Random: the machines have no source of randomness.
    fresh_id: str = ""

    def error(self, code: ErrorCode) -> AnsweredT:
        return self.kind.error(self.request, int(code))


def append_error(code: ErrorCode) -> ErrorCode:
    """Map an append error to the error code a group client expects (Kafka:
    GroupCoordinatorService.handleOperationException)."""
    # Others: MESSAGE_TOO_LARGE, of a group that fits into no batch, and defects.
    return _APPEND.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_APPEND = {
    # Clients search for the coordinator again, and continue where the log can be written.
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # Of transactional batches and markers, whose senders know these codes.
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}
_ELSEWHERE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
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


def _fetch(request: OffsetFetchRequestGroup, code: int) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=request.group_id, error_code=code)


def _fetch_stable(request: StableOffsetFetch, code: int) -> OffsetFetchResponseGroup:
    return _fetch(request.group, code)


def _commit_verified(request: VerifiedCommit, code: int) -> TxnOffsetCommitResponse:
    return transactional_error(request.commit, code)


def transactional_error(request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _marker(_: WriteMarker, code: int) -> MarkerWritten:
    # A transaction coordinator knows only errors of a partition as reasons to send a marker again
    # (Kafka: GroupCoordinatorService.completeTransaction).
    return MarkerWritten(int(ErrorCode.NOT_LEADER_OR_FOLLOWER) if code in _ELSEWHERE else code)


JOIN = RequestKind(JoinGroupRequest, JoinGroupResponse, _join)
SYNC = RequestKind(
    SyncGroupRequest, SyncGroupResponse, lambda _, code: SyncGroupResponse(error_code=code)
)
HEARTBEAT = RequestKind(
    HeartbeatRequest, HeartbeatResponse, lambda _, code: HeartbeatResponse(error_code=code)
)
LEAVE = RequestKind(
    LeaveGroupRequest, LeaveGroupResponse, lambda _, code: LeaveGroupResponse(error_code=code)
)
OFFSET_COMMIT = RequestKind(OffsetCommitRequest, OffsetCommitResponse, _commit)
OFFSET_FETCH = RequestKind(OffsetFetchRequestGroup, OffsetFetchResponseGroup, _fetch)
STABLE_FETCH = RequestKind(
    StableOffsetFetch, OffsetFetchResponseGroup, _fetch_stable, attrgetter("group.group_id")
)
TXN_COMMIT = RequestKind(
    VerifiedCommit, TxnOffsetCommitResponse, _commit_verified, attrgetter("commit.group_id")
)
MARKER = RequestKind(WriteMarker, MarkerWritten, _marker)
OFFSET_DELETE = RequestKind(
    OffsetDeleteRequest, OffsetDeleteResponse, lambda _, code: OffsetDeleteResponse(error_code=code)
)
DESCRIBE = RequestKind(
    DescribeGroupsRequest, DescribeGroupsResponse, _describe, lambda request: request.groups[0]
)
LIST = RequestKind(
    ListGroupsRequest, ListGroupsResponse, lambda _, code: ListGroupsResponse(error_code=code)
)
DELETE = RequestKind(
    DeleteGroupsRequest, DeleteGroupsResponse, _delete, lambda request: request.groups_names[0]
)
CONSUMER_HEARTBEAT = RequestKind(
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    lambda _, code: ConsumerGroupHeartbeatResponse(error_code=code),
)
CONSUMER_DESCRIBE = RequestKind(
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    lambda request, code: ConsumerGroupDescribeResponse(
        groups=[DescribedConsumerGroup(group_id=request.group_ids[0], error_code=code)]
    ),
    lambda request: request.group_ids[0],
)
SHARE_HEARTBEAT = RequestKind(
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    lambda _, code: ShareGroupHeartbeatResponse(error_code=code),
)
SHARE_DESCRIBE = RequestKind(
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    lambda request, code: ShareGroupDescribeResponse(
        groups=[DescribedShareGroup(group_id=request.group_ids[0], error_code=code)]
    ),
    lambda request: request.group_ids[0],
)
SHARE_ALTER = RequestKind(
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    lambda _, code: AlterShareGroupOffsetsResponse(error_code=code),
)
SHARE_DELETE = RequestKind(
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    lambda _, code: DeleteShareGroupOffsetsResponse(error_code=code),
)
LIST_SHARES = RequestKind(ListShares, SharesListed, lambda _, code: SharesListed(code))
STREAMS_HEARTBEAT = RequestKind(
    StreamsGroupHeartbeatRequest,
    StreamsHeartbeatResult,
    lambda _, code: StreamsHeartbeatResult(StreamsGroupHeartbeatResponse(error_code=code)),
)
STREAMS_DESCRIBE = RequestKind(
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    lambda request, code: StreamsGroupDescribeResponse(
        groups=[DescribedStreamsGroup(group_id=request.group_ids[0], error_code=code)]
    ),
    lambda request: request.group_ids[0],
)
