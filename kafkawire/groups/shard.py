"""One coordinator partition: its groups, their committed offsets, and its decisions.

The pure part of a coordinator. `decide` decides on any request about groups of this partition;
`apply` applies the steps of a decision, and records read from the log, with the same code. Groups
are created by a record or by a commit without a group (a simple consumer), and deleted by a
tombstone.

Driven by kafkawire.groups.coordinator, which appends, waits, sends, and loads snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups import commit_checks, offsets
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.join import FRESH_ID_BYTES, join
from kafkawire.groups.classic.rebalance import decide_loaded, decide_timer
from kafkawire.groups.classic.sync import check_commit, check_heartbeat, heartbeat, leave, sync
from kafkawire.groups.classic.views import describe_group, list_groups
from kafkawire.groups.classic.working_copy import join_error
from kafkawire.groups.consumer import classic_members, removal
from kafkawire.groups.consumer import heartbeat as consumer_heartbeat
from kafkawire.groups.consumer.conversion import upgrade
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.target import gather_input
from kafkawire.groups.kinds import (
    CONSUMER_KIND,
    SHARE_KIND,
    STREAMS_KIND,
    GroupKind,
    KindGroup,
    list_kind,
)
from kafkawire.groups.large_targets import (
    LargeInput,
    TargetOfMember,
    decide_computed,
    decide_targets,
)
from kafkawire.groups.model.decision import (
    ChangeStates,
    Decision,
    Reply,
    SetTimer,
    StatesPurpose,
    Step,
    session,
)
from kafkawire.groups.model.member import Member
from kafkawire.groups.model.records import (
    ConsumerRecord,
    GroupRecord,
    KindRecord,
    OffsetRecord,
    Record,
    ShareGroupRecord,
    StreamsGroupRecord,
    fits,
)
from kafkawire.groups.model.request import (
    Client,
    GroupRequest,
    ListShares,
    MarkerWritten,
    Request,
    Response,
    ResponseT,
    Settings,
    SharesListed,
    StableOffsetFetch,
    StreamsHeartbeatResult,
    VerifiedCommit,
    WriteMarker,
)
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.model.topics import ClusterTopics, NoTopics
from kafkawire.groups.model.transactional import PendingBatch
from kafkawire.groups.offsets import Offsets
from kafkawire.groups.pending import PendingRecord
from kafkawire.groups.share import heartbeat as share_heartbeat
from kafkawire.groups.share import offsets as share_offsets
from kafkawire.groups.share.group import ShareGroup
from kafkawire.groups.share.initialization import (
    decide_initialized,
    decide_topics_gone,
    decide_verified,
)
from kafkawire.groups.streams import heartbeat as streams_heartbeat
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.target import gather_input as gather_streams_input
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from kafkawire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from kafkawire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kafkawire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from kafkawire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kafkawire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kafkawire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from kafkawire.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kafkawire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kafkawire.messages.stored import GroupMetadataValue
from kafkawire.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kafkawire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kafkawire.share.persister import SharePartitionKey
from kafkawire.share.state.machine import StateAnswer

UNKNOWN_GROUP_FROM = 9  # OffsetCommit: GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION (KIP-848)


class Shard:
    """The groups and offsets of one partition of `__consumer_offsets`. A group id is in one of
    `groups` (classic protocol), `consumer_groups`, `share_groups` and `streams_groups`; `kinds` has
    the last three."""

    __slots__ = (
        "consumer_groups", "groups", "kinds", "offsets", "settings", "share_groups",
        "streams_groups", "topics_of_cluster",
    )  # fmt: skip

    def __init__(self, settings: Settings, topics: ClusterTopics | None = None) -> None:
        self.settings = settings
        self.topics_of_cluster: ClusterTopics = NoTopics() if topics is None else topics
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.share_groups: dict[str, ShareGroup] = {}
        self.streams_groups: dict[str, StreamsGroup] = {}
        # By the type of their records.
        self.kinds: dict[type, tuple[GroupKind, dict[str, Any]]] = {
            ConsumerRecord: (CONSUMER_KIND, self.consumer_groups),
            ShareGroupRecord: (SHARE_KIND, self.share_groups),
            StreamsGroupRecord: (STREAMS_KIND, self.streams_groups),
        }
        self.offsets = Offsets()

    def decide(self, ask: GroupRequest[Request, Response], now_ms: int) -> Decision:
        """Decide on one request: reply or park it. Changes nothing."""
        return _DECIDE[type(ask.request)](self, ask, now_ms)

    def _join(
        self, ask: GroupRequest[JoinGroupRequest, JoinGroupResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        code = self._check_join(request)
        if code is not ErrorCode.NONE:
            return _answer(ask, join_error(code, request.member_id))
        group = self.groups.get(request.group_id)
        if group is not None:
            return join(group, ask, now_ms)
        other = self._kind_group(request.group_id)
        if isinstance(other, ConsumerGroup) and other.members:
            return self._join_consumer_group(other, ask, now_ms)
        if isinstance(other, ShareGroup) or (other is not None and other.members):
            return _answer(ask, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
        # Of a group that was deleted or has expired: its client joins again without id.
        if request.member_id:
            return _answer(ask, join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        decision = join(ClassicGroup(request.group_id, self.settings), ask, now_ms)
        # A record creates the group, to which the changes of the decision are applied.
        if decision.steps:
            replaced: list[Step] = [] if other is None else [*other.tombstones()]
            decision.steps[:0] = [*replaced, GroupRecord(request.group_id, _new_group(now_ms))]
        return decision

    def _join_consumer_group(
        self,
        group: ConsumerGroup,
        ask: GroupRequest[JoinGroupRequest, JoinGroupResponse],
        now_ms: int,
    ) -> Decision:
        try:
            return classic_members.join(group, self.topics_of_cluster, self.settings, ask, now_ms)
        except classic_members.MemberIdRequiredError as error:
            return _answer(ask, join_error(error.code, error.member_id))
        except KafkaError as error:
            return _answer(ask, join_error(error.code, ask.request.member_id))

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        # A flexible request may have longer strings than a record: refused now, as otherwise the
        # group could not be stored when its rebalance completes.
        if not request.group_id or not fits(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        # The member id begins with the instance id.
        if not fits(request.group_instance_id or "", FRESH_ID_BYTES):
            return ErrorCode.INVALID_REQUEST
        names = [request.protocol_type, *(protocol.name for protocol in request.protocols)]
        if not all(map(fits, names)):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        least_ms = self.settings.group_min_session_timeout_ms
        most_ms = self.settings.group_max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _sync(
        self, ask: GroupRequest[SyncGroupRequest, SyncGroupResponse], now_ms: int
    ) -> Decision:
        other = self.consumer_groups.get(ask.request.group_id)
        if other is not None:
            try:
                return classic_members.sync(other, self.topics_of_cluster, ask, now_ms)
            except KafkaError as error:
                return _answer(ask, ask.error(error.code))
        code, group = self._find(ask.request.group_id)
        return _answer(ask, ask.error(code)) if group is None else sync(group, ask, now_ms)

    def _heartbeat(
        self, ask: GroupRequest[HeartbeatRequest, HeartbeatResponse], now_ms: int
    ) -> Decision:
        other = self.consumer_groups.get(ask.request.group_id)
        if other is not None:
            try:
                return classic_members.heartbeat(other, ask, now_ms)
            except KafkaError as error:
                return _answer(ask, ask.error(error.code))
        code, group = self._find(ask.request.group_id)
        return _answer(ask, ask.error(code)) if group is None else heartbeat(group, ask, now_ms)

    def _find(self, group_id: str) -> tuple[ErrorCode, ClassicGroup | None]:
        # Offsets may be committed to the empty group id, but it cannot have members.
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, None
        group = self.groups.get(group_id)
        return (ErrorCode.UNKNOWN_MEMBER_ID if group is None else ErrorCode.NONE), group

    def check_heartbeat(self, request: HeartbeatRequest) -> tuple[ErrorCode, Member | None]:
        """Return `decide`'s response to a Heartbeat, and the member whose session it extends."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID, None
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        return check_heartbeat(group, request)

    def _leave(
        self, ask: GroupRequest[LeaveGroupRequest, LeaveGroupResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        if not request.group_id:
            return _answer(ask, ask.error(ErrorCode.INVALID_GROUP_ID))
        group = self.groups.get(request.group_id)
        if group is not None:
            return leave(group, ask, now_ms)
        other = self.consumer_groups.get(request.group_id)
        if other is not None:
            return removal.leave(other, self.topics_of_cluster, self.settings, ask, now_ms)
        answers = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=int(ErrorCode.UNKNOWN_MEMBER_ID),
            )
            for identity in request.members
        ]
        return _answer(ask, LeaveGroupResponse(members=answers))

    def _commit(
        self, ask: GroupRequest[OffsetCommitRequest, OffsetCommitResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        group = self.groups.get(request.group_id)
        other = self._kind_group(request.group_id)
        generation = request.generation_id_or_member_epoch
        if not fits(request.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        elif isinstance(other, ShareGroup):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif other is not None:
            code = commit_checks.check_commit(
                other,
                self.topics_of_cluster,
                request.member_id,
                request.group_instance_id,
                generation,
                ask.version,
                _partitions(request),
            )
        elif group is not None:
            code = check_commit(group, request.member_id, request.group_instance_id, generation)
        # A simple consumer or a tool: the records create the group.
        elif generation < 0:
            code = ErrorCode.NONE
        elif ask.version >= UNKNOWN_GROUP_FROM:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE:
            return _answer(ask, ask.error(code))
        records, response = offsets.commit(request, self.settings, now_ms)
        decision = Decision(request.group_id, [*records], [Reply(ask.token, response)])
        member = None if group is None else group.members.get(request.member_id)
        # A commit shows that the member is alive, like a heartbeat (as in Kafka).
        if member is not None:
            at_ms = now_ms + member.session_timeout_ms
            decision.effects.insert(0, SetTimer(session(member.id), at_ms))
        return decision

    def _commit_verified(
        self, ask: GroupRequest[VerifiedCommit, TxnOffsetCommitResponse], now_ms: int
    ) -> Decision:
        request = ask.request.commit
        group = self.groups.get(request.group_id)
        other = self._kind_group(request.group_id)
        if not request.group_id or not fits(request.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        elif isinstance(other, ShareGroup):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif other is not None:
            code = commit_checks.check_commit(
                other,
                self.topics_of_cluster,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                ask.version,
                _partitions(request),
                transactional=True,
            )
        elif group is not None:
            code = check_commit(
                group,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                transactional=True,
            )
        else:  # without a generation the records create a simple group
            code = ErrorCode.ILLEGAL_GENERATION if request.generation_id >= 0 else ErrorCode.NONE
        if code is not ErrorCode.NONE:
            return _answer(ask, ask.error(code))
        batch, response = offsets.commit_pending(ask.request, self.settings, now_ms)
        # No session is extended: the producer sends this, the consumer its own heartbeats.
        steps: list[Step] = [] if batch is None else [batch]
        return Decision(request.group_id, steps, [Reply(ask.token, response)])

    def _write_marker(self, ask: GroupRequest[WriteMarker, MarkerWritten], now_ms: int) -> Decision:
        return Decision(steps=[ask.request.marker], effects=[Reply(ask.token, MarkerWritten())])

    def _fetch_stable(
        self, ask: GroupRequest[StableOffsetFetch, OffsetFetchResponseGroup], now_ms: int
    ) -> Decision:
        request = ask.request.group
        code = self._check_fetch(request)
        if code is not ErrorCode.NONE:
            return _answer(ask, ask.error(code))
        return _answer(ask, offsets.fetch(self.offsets, request, stable=True))

    def _fetch(
        self, ask: GroupRequest[OffsetFetchRequestGroup, OffsetFetchResponseGroup], now_ms: int
    ) -> Decision:
        request = ask.request
        code = self._check_fetch(request)
        if code is not ErrorCode.NONE:
            return _answer(ask, ask.error(code))
        return _answer(ask, offsets.fetch(self.offsets, request))

    def _check_fetch(self, request: OffsetFetchRequestGroup) -> ErrorCode:
        group = self._kind_group(request.group_id)
        if isinstance(group, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group is None:
            return ErrorCode.NONE
        return commit_checks.check_fetch(group, request.member_id, request.member_epoch)

    def _delete_offsets(
        self, ask: GroupRequest[OffsetDeleteRequest, OffsetDeleteResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        group = self.group_with_offsets(request.group_id)
        records, response = offsets.delete(self.offsets, group, request)
        return Decision(request.group_id, [*records], [Reply(ask.token, response)])

    def _describe(
        self, ask: GroupRequest[DescribeGroupsRequest, DescribeGroupsResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        groups = [describe_group(id_, self.groups.get(id_), ask.version) for id_ in request.groups]
        return _answer(ask, DescribeGroupsResponse(groups=groups))

    def _list(
        self, ask: GroupRequest[ListGroupsRequest, ListGroupsResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        found = list_groups(self.groups.values(), request.states_filter, request.types_filter)
        for kind, groups in self.kinds.values():
            found += list_kind(kind, groups.values(), request.states_filter, request.types_filter)
        return _answer(ask, ListGroupsResponse(groups=found))

    def _delete(
        self, ask: GroupRequest[DeleteGroupsRequest, DeleteGroupsResponse], now_ms: int
    ) -> Decision:
        request = ask.request
        share = self.share_groups.get(request.groups_names[0])
        # A request with one group: its states are deleted first.
        if share is not None and not share.members:
            return share_offsets.delete_group(share, self.topics_of_cluster, ask.token)
        decision = Decision()
        response = DeleteGroupsResponse()
        for group_id in dict.fromkeys(request.groups_names):
            code = ErrorCode.NONE
            if self._any(group_id) is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not self.is_empty(group_id):
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                decision.steps += self._tombstones(group_id)
            response.results.append(DeletableGroupResult(group_id=group_id, error_code=int(code)))
        decision.effects.append(Reply(ask.token, response))
        return decision

    def _kind_group(self, group_id: str) -> KindGroup | None:
        """Return a group with a protocol of Kafka 4."""
        return (
            self.consumer_groups.get(group_id)
            or self.share_groups.get(group_id)
            or self.streams_groups.get(group_id)
        )

    def _any(self, group_id: str) -> ClassicGroup | KindGroup | None:
        return self.groups.get(group_id) or self._kind_group(group_id)

    def group_with_offsets(
        self, group_id: str
    ) -> ClassicGroup | ConsumerGroup | StreamsGroup | None:
        """Return a group that may have committed offsets: not a share group."""
        found = self._any(group_id)
        return None if isinstance(found, ShareGroup) else found

    def is_empty(self, group_id: str) -> bool:
        """Return whether a group exists and has no member."""
        group = self._any(group_id)
        if isinstance(group, ClassicGroup):
            return group.state is GroupState.EMPTY
        return group is not None and not group.members

    def group_ids(self) -> list[str]:
        """Return the groups that can expire: not share groups."""
        return [*self.groups, *self.consumer_groups, *self.streams_groups]

    def _tombstones(self, group_id: str) -> list[Record]:
        return [*self.offsets.tombstones(group_id), *self._group_tombstones(group_id)]

    def _group_tombstones(self, group_id: str) -> list[Record]:
        group = self._kind_group(group_id)
        return [GroupRecord(group_id, None)] if group is None else [*group.tombstones()]

    def _consumer_heartbeat(
        self,
        ask: GroupRequest[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse],
        now_ms: int,
    ) -> Decision:
        request = ask.request
        try:
            consumer_heartbeat.check_request(request, ask.version, self.settings)
            group = self.consumer_groups.get(request.group_id)
            replaced = Decision()
            if group is None and self._kind_group(request.group_id) is not None:
                text = f"Group {request.group_id} is not a consumer group."
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
            if group is None:
                replaced, group = self._replace_classic(request, now_ms)
            decision = consumer_heartbeat.heartbeat(
                group, self.topics_of_cluster, self.settings, ask, now_ms
            )
        except KafkaError as error:
            response = ConsumerGroupHeartbeatResponse(
                error_code=int(error.code), error_message=error.message
            )
            return _answer(ask, response)
        decision.steps[:0] = replaced.steps
        decision.effects[:0] = replaced.effects
        return decision

    def answer_unchanged(
        self, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Return the answer to a heartbeat that only extends its session; None: decide on it.
        Hot."""
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            return None
        return consumer_heartbeat.answer_unchanged(
            group, self.topics_of_cluster, self.settings, client, request
        )

    def _replace_classic(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> tuple[Decision, ConsumerGroup]:
        """Return a new consumer group, and what replaces a classic one by it. Raises
        GROUP_ID_NOT_FOUND if no group can be created."""
        group_id = request.group_id
        classic = self.groups.get(group_id)
        if request.member_epoch != 0:
            text = f"Group {group_id} not found."
            if classic is not None:
                text = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if classic is not None and classic.members:
            return upgrade(classic, self.topics_of_cluster, self.settings, now_ms)
        decision = Decision(group_id)
        if classic is not None and classic.recorded is not None:
            decision.steps.append(GroupRecord(group_id, None))
        return decision, ConsumerGroup(group_id)

    def _consumer_describe(
        self,
        ask: GroupRequest[ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse],
        now_ms: int,
    ) -> Decision:
        groups = self._describe_each(ConsumerRecord, ask.request.group_ids)
        return _answer(ask, ConsumerGroupDescribeResponse(groups=groups))

    def _describe_each(self, record: type, group_ids: Iterable[str]) -> list[Any]:
        """Describe groups of the type with these records."""
        kind, groups = self.kinds[record]
        described: list[Any] = []
        for group_id in group_ids:
            group = groups.get(group_id)
            if group is not None:
                described.append(kind.describe(group, self.topics_of_cluster, self.settings))
                continue
            exists = self._any(group_id) is not None
            fault = f"is not a {kind.name} group" if exists else "not found"
            described.append(
                kind.described(
                    group_id=group_id,
                    error_code=int(ErrorCode.GROUP_ID_NOT_FOUND),
                    error_message=f"Group {group_id} {fault}.",
                )
            )
        return described

    # -- share groups ---------------------------------------------------------------------

    def _share_heartbeat(
        self,
        ask: GroupRequest[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse],
        now_ms: int,
    ) -> Decision:
        request = ask.request
        try:
            share_heartbeat.check_request(request)
            group = self._share_group(request.group_id, create=request.member_epoch == 0)
            return share_heartbeat.heartbeat(
                group, self.topics_of_cluster, self.settings, ask, now_ms
            )
        except KafkaError as error:
            code, text = int(error.code), error.message
            return _answer(ask, ShareGroupHeartbeatResponse(error_code=code, error_message=text))

    def _share_group(self, group_id: str, *, create: bool) -> ShareGroup:
        """Return a share group, or a new one if `create`. Raises GROUP_ID_NOT_FOUND."""
        group = self.share_groups.get(group_id)
        if group is not None:
            return group
        # A group of another type does not become a share group, even without members.
        if self._any(group_id) is not None:
            text = f"Group {group_id} is not a share group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if not create:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        return ShareGroup(group_id)

    def _share_describe(
        self,
        ask: GroupRequest[ShareGroupDescribeRequest, ShareGroupDescribeResponse],
        now_ms: int,
    ) -> Decision:
        groups = self._describe_each(ShareGroupRecord, ask.request.group_ids)
        return _answer(ask, ShareGroupDescribeResponse(groups=groups))

    def _share_alter(
        self,
        ask: GroupRequest[AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse],
        now_ms: int,
    ) -> Decision:
        group_id = ask.request.group_id
        try:
            if not group_id or not fits(group_id):
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            group = self._share_group(group_id, create=True)
            return share_offsets.alter(group, self.topics_of_cluster, ask, now_ms)
        except KafkaError as error:
            text = error.message or error.code.sentence
            response = AlterShareGroupOffsetsResponse(
                error_code=int(error.code), error_message=text
            )
            return _answer(ask, response)

    def _share_delete_offsets(
        self,
        ask: GroupRequest[DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse],
        now_ms: int,
    ) -> Decision:
        group_id = ask.request.group_id
        try:
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            group = self._share_group(group_id, create=False)
            return share_offsets.delete_offsets(group, self.topics_of_cluster, ask)
        except KafkaError as error:
            text = error.message or error.code.sentence
            response = DeleteShareGroupOffsetsResponse(
                error_code=int(error.code), error_message=text
            )
            return _answer(ask, response)

    def _list_shares(self, ask: GroupRequest[ListShares, SharesListed], now_ms: int) -> Decision:
        group = self.share_groups.get(ask.request.group_id)
        states = {} if group is None else group.initialized
        partitions = {topic_id: named.partitions for topic_id, named in states.items()}
        return _answer(ask, SharesListed(partitions=partitions))

    def decide_changed(
        self,
        group_id: str,
        effect: ChangeStates,
        answers: Mapping[SharePartitionKey, StateAnswer],
    ) -> Decision:
        """Decide on the answers of share coordinators to the requests of an effect."""
        topics, body = self.topics_of_cluster, effect.body
        group = self.share_groups.get(group_id)
        if group is None:
            group = ShareGroup(group_id)  # it was deleted by a concurrent request
        if isinstance(body, AlterShareGroupOffsetsResponse):
            decision = share_offsets.decide_altered(group, topics, body, answers)
        elif isinstance(body, DeleteShareGroupOffsetsResponse):
            decision = share_offsets.decide_offsets_deleted(group, topics, body, answers)
        elif isinstance(body, DeleteGroupsResponse):
            decision = share_offsets.decide_group_deleted(group, body, answers)
        elif effect.purpose is StatesPurpose.VERIFY:
            decision = decide_verified(group, topics, answers)
        else:
            made = {key: answer.code is ErrorCode.NONE for key, answer in answers.items()}
            decision = decide_initialized(group, topics, made)
        if group_id not in self.share_groups:
            decision.steps.clear()
        if effect.token is not None and body is not None:
            decision.effects.append(Reply(effect.token, body))
        return decision

    # -- streams groups -------------------------------------------------------------------

    def _streams_heartbeat(
        self,
        ask: GroupRequest[StreamsGroupHeartbeatRequest, StreamsHeartbeatResult],
        now_ms: int,
    ) -> Decision:
        request = ask.request
        try:
            streams_heartbeat.check_request(request)
            group = self._streams_group(request.group_id, create=request.member_epoch == 0)
            decision = streams_heartbeat.heartbeat(
                group, self.topics_of_cluster, self.settings, ask, now_ms
            )
        except KafkaError as error:
            response = StreamsGroupHeartbeatResponse(
                error_code=int(error.code), error_message=error.message
            )
            return _answer(ask, StreamsHeartbeatResult(response))
        classic = self.groups.get(request.group_id)
        if classic is not None and classic.recorded is not None:
            decision.steps.insert(0, GroupRecord(request.group_id, None))
        return decision

    def _streams_group(self, group_id: str, *, create: bool) -> StreamsGroup:
        """Return a streams group, or a new one if `create`, which replaces a classic group without
        members. Raises GROUP_ID_NOT_FOUND."""
        group = self.streams_groups.get(group_id)
        if group is not None:
            return group
        other = self._any(group_id)
        empty = isinstance(other, ClassicGroup) and other.state is GroupState.EMPTY
        if other is not None and not (create and empty):
            text = f"Group {group_id} is not a streams group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if not create:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        return StreamsGroup(group_id)

    def _streams_describe(
        self,
        ask: GroupRequest[StreamsGroupDescribeRequest, StreamsGroupDescribeResponse],
        now_ms: int,
    ) -> Decision:
        groups = self._describe_each(StreamsGroupRecord, ask.request.group_ids)
        return _answer(ask, StreamsGroupDescribeResponse(groups=groups))

    def decide_matched(
        self, group_id: str, found: Mapping[str, Iterable[str]], version: int, now_ms: int
    ) -> Decision:
        """Store what the patterns of a consumer group have matched; `found` is empty if that
        failed."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            return Decision(group_id)
        topics = self.topics_of_cluster
        return consumer_heartbeat.decide_matched(group, topics, found, version, now_ms)

    def _large_group(self, group_id: str) -> ConsumerGroup | StreamsGroup | None:
        return self.consumer_groups.get(group_id) or self.streams_groups.get(group_id)

    def gather_target_input(self, group_id: str) -> LargeInput | None:
        """Return what the target of a large group is computed from; None if the group is gone."""
        group = self._large_group(group_id)
        if group is None:
            return None
        if isinstance(group, StreamsGroup):
            return gather_streams_input(group, group.epoch, group.configured, group.configs)
        return gather_input(group, self.settings, self.topics_of_cluster, group.epoch)

    def decide_targets(
        self, group_id: str, given: LargeInput, targets: Iterable[TargetOfMember]
    ) -> Decision:
        """Store the computed targets of some members of a large group."""
        group = self._large_group(group_id)
        return Decision(group_id) if group is None else decide_targets(group, given, targets)

    def decide_computed(
        self, group_id: str, given: LargeInput, now_ms: int, *, stored: bool
    ) -> Decision:
        """End the computation of a large group's target; `stored`: all its parts are."""
        group = self._large_group(group_id)
        if group is None:
            return Decision(group_id)
        return decide_computed(group, given, now_ms, stored=stored)

    def decide_timer(self, group_id: str, key: str, now_ms: int) -> Decision:
        group = self.groups.get(group_id)
        if group is not None:
            return decide_timer(group, key, now_ms)
        for kind, groups in self.kinds.values():
            if group_id in groups:
                return kind.decide_timer(
                    groups[group_id], self.topics_of_cluster, self.settings, key, now_ms
                )
        return Decision(group_id)

    def decide_loaded(self, now_ms: int) -> Iterator[Decision]:
        for group in list(self.groups.values()):
            yield decide_loaded(group, now_ms)
        for kind, groups in self.kinds.values():
            for other in list(groups.values()):
                yield kind.decide_loaded(other, self.settings, now_ms)

    def topics(self) -> set[str]:
        return self.offsets.topics()

    def decide_topic_deleted(self, topics: Iterable[str]) -> Decision:
        """Forget the offsets of deleted topics: new topics of these names start without any. Share
        groups forget their states of all topics that do not exist."""
        decision = Decision(steps=[*self.offsets.of_topics(topics)])
        for group in self.share_groups.values():
            decision.steps += decide_topics_gone(group, self.topics_of_cluster).steps
        return decision

    def decide_expiry(self, group_id: str, now_ms: int) -> Decision:
        """Forget a group's expired offsets, and a group without members and offsets itself."""
        decision = Decision(group_id)
        group = self.group_with_offsets(group_id)
        if group is None:
            return decision
        retention_ms = self.settings.offsets_retention_minutes * 60_000
        decision.steps += offsets.find_expired(self.offsets, group, now_ms, retention_ms)
        # Pending offsets count, too, and never expire: an open transaction keeps its group.
        held = sum(len(found) for found in self.offsets.list_partitions(group_id).values())
        joins = isinstance(group, ClassicGroup) and group.pending
        if held == len(decision.steps) and self.is_empty(group_id) and not joins:
            decision.steps += self._group_tombstones(group_id)
        return decision

    def apply(self, step: Step, group_id: str = "") -> None:
        """Apply one step of a decision about `group_id`, just appended; or a record or the end of a
        transaction that was read from the log. Hot."""
        if isinstance(step, OffsetRecord):
            self.offsets.apply(step)
            if step.value is None:
                self._forget_simple(step.group_id)
            elif step.group_id not in self.groups:
                self._ensure(step.group_id)
        elif isinstance(step, GroupRecord):
            self._apply_group(step)
        elif isinstance(step, KindRecord):
            self._apply_kind(step)
        elif isinstance(step, PendingBatch | TransactionMarker):
            self._apply_transaction(step)
        else:
            other = self._kind_group(group_id)
            (self.groups[group_id] if other is None else other).apply(step)

    def _apply_transaction(self, step: PendingBatch | TransactionMarker) -> None:
        if isinstance(step, PendingBatch):
            for record in step.records:
                self.offsets.pending.put(step.producer_id, record)
                self._ensure(record.group_id)
        else:
            for ended in self.offsets.end_transaction(step.producer_id, commit=step.commit):
                self._forget_simple(ended)

    def lose_transactions(self, producer_ids: Iterable[int]) -> None:
        """End the transactions of producers whose markers are damaged."""
        # Committed or aborted is not known: the keys become lost, and are answered with an error.
        for producer_id in producer_ids:
            for group_id in self.offsets.lose_pending(producer_id):
                self._forget_simple(group_id)

    def load_pending(self, stored: PendingRecord) -> None:
        self.offsets.pending.restore([stored])
        self._ensure(stored.record.group_id)

    def _apply_group(self, record: GroupRecord) -> None:
        if record.value is None:
            self.groups.pop(record.group_id, None)
        else:
            for _, groups in self.kinds.values():
                groups.pop(record.group_id, None)
            self._create(record.group_id).apply(record)

    def _apply_kind(self, record: KindRecord) -> None:
        group_id = record.group_id
        kind, groups = self.kinds[type(record)]
        group = groups.get(group_id)
        if record.value is None:
            if record.kind is kind.end:
                groups.pop(group_id, None)
            elif group is not None:
                group.apply(record)
            return
        if group is None:
            # A classic group with its id is empty, or only stores offsets.
            self.groups.pop(group_id, None)
            group = groups[group_id] = kind.create(group_id)
        group.apply(record)

    def _ensure(self, group_id: str) -> None:
        """Create a group that only stores offsets, unless there is one of any type."""
        if self._kind_group(group_id) is None:
            self._create(group_id)

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self.settings)
        return group

    def _forget_simple(self, group_id: str) -> None:
        """Remove a group that only stored offsets with its last offset."""
        group = self.groups.get(group_id)
        # Nothing of it is in the log any more, so after the next load it would not exist, either.
        if group is None or group.recorded is not None or group_id in self.offsets.by_group:
            return
        if group_id in self.offsets.pending.by_group:
            return
        if group.state is GroupState.EMPTY and not group.pending:
            del self.groups[group_id]

    def records(self) -> Iterator[Record]:
        """Yield the live records, which would load the current durable state. It may change between
        two of them."""
        # Groups before offsets: an offset of an unknown group would create a simple one.
        for group in list(self.groups.values()):
            if group.recorded is not None:
                yield GroupRecord(group.group_id, group.recorded)
        for _, groups in self.kinds.values():
            for other in list(groups.values()):
                yield from other.records()
        yield from self.offsets.records()


def _answer(ask: GroupRequest[Any, ResponseT], body: ResponseT) -> Decision:
    return Decision(effects=[Reply(ask.token, body)])


def _partitions(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
) -> Iterator[tuple[str, int]]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index


def _new_group(now_ms: int) -> GroupMetadataValue:
    """Return the first record of a new group (as Kafka writes it)."""
    return GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=now_ms
    )


_DECIDE: dict[type, Callable[[Shard, GroupRequest[Any, Any], int], Decision]] = {
    JoinGroupRequest: Shard._join,
    SyncGroupRequest: Shard._sync,
    HeartbeatRequest: Shard._heartbeat,
    LeaveGroupRequest: Shard._leave,
    OffsetCommitRequest: Shard._commit,
    OffsetFetchRequestGroup: Shard._fetch,
    StableOffsetFetch: Shard._fetch_stable,
    VerifiedCommit: Shard._commit_verified,
    WriteMarker: Shard._write_marker,
    OffsetDeleteRequest: Shard._delete_offsets,
    DescribeGroupsRequest: Shard._describe,
    ListGroupsRequest: Shard._list,
    DeleteGroupsRequest: Shard._delete,
    ConsumerGroupHeartbeatRequest: Shard._consumer_heartbeat,
    ConsumerGroupDescribeRequest: Shard._consumer_describe,
    ShareGroupHeartbeatRequest: Shard._share_heartbeat,
    ShareGroupDescribeRequest: Shard._share_describe,
    AlterShareGroupOffsetsRequest: Shard._share_alter,
    DeleteShareGroupOffsetsRequest: Shard._share_delete_offsets,
    ListShares: Shard._list_shares,
    StreamsGroupHeartbeatRequest: Shard._streams_heartbeat,
    StreamsGroupDescribeRequest: Shard._streams_describe,
}
