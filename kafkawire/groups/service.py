"""The group service: finds the coordinator of a group and passes requests to it.

A group belongs to one partition of `__consumer_offsets` (kafkawire.coordination.service).

Every method decides before it returns, so decisions are in call order; only the response is
awaited. Called by the handlers (kafkawire.handlers.*) and, for deleted topics, by broker.topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.java_hash import group_partition_of
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.coordination.service import CoordinatorService, InternalPartitions
from kafkawire.groups.activity import activity
from kafkawire.groups.coordinator import Coordinator
from kafkawire.groups.event_log import GroupEventLog
from kafkawire.groups.model.request import (
    DELETE,
    DESCRIBE,
    LIST,
    MARKER,
    OFFSET_DELETE,
    Client,
    RequestKind,
    RequestT,
    ResponseT,
    WriteMarker,
)
from kafkawire.groups.model.share_states import ShareStates
from kafkawire.groups.model.transactional import (
    ADDS_FROM,
    Verification,
    Verified,
    VerifyOffsets,
    verification_code,
)
from kafkawire.log.io import slices
from kafkawire.log.io.ports import Env
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kafkawire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kafkawire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kafkawire.messages.group_activity import GroupActivityResponse
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest
from kafkawire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkawire.messages.offset_fetch import OffsetFetchRequestTopics
from kafkawire.messages.txn_offset_commit import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog

__all__ = ["OFFSETS_TOPIC", "Client", "GroupService"]

OFFSETS_TOPIC = "__consumer_offsets"
FORGOTTEN_AT_ONCE = 128
"""Offsets whose tombstones are written together: two milliseconds."""

MAX_UNANSWERED = 64
"""Groups of one request that wait for the same commit."""

BROKER = Client(None, "")
"""The sender of markers."""

EntryT = TypeVar("EntryT")


class GroupService(CoordinatorService[Coordinator]):
    """All groups coordinated by this broker. `internal` returns the partitions of the offsets
    topic, creating it if needed; None: led by another broker. `verify` asks the transaction
    coordinator; without it a TxnOffsetCommit is answered with NOT_COORDINATOR. `states`: the share
    coordinators."""

    topic = OFFSETS_TOPIC

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        folder: str,
        commit_log: CommitLog,
        internal: InternalPartitions,
        topics: Catalog,
        verify: VerifyOffsets | None = None,
        states: ShareStates | None = None,
    ) -> None:
        super().__init__(env, topics, internal)
        self.config = config
        self.folder = f"{folder}/groups"
        self.commit_log = commit_log
        self._verify = verify
        self._states = states
        self.events = GroupEventLog(env.clock.monotonic, env.hooks)

    def new_coordinator(self, partition: Partition) -> Coordinator:
        coordinator = Coordinator(
            self.env, self.config, partition, self.commit_log, self.folder, self.catalog,
            self.events, self._states,
        )  # fmt: skip
        # Deletions that came while the partition had no coordinator here.
        if partition.index in self.gained:
            for name in self.gained[partition.index].deleted:
                coordinator.forget_topic(name)
        return coordinator

    partition_of = staticmethod(group_partition_of)

    def topic_deleted(self, name: str, topic_id: bytes) -> None:
        """Forget the offsets committed for a topic. The tombstones are appended on return and
        durable with the next commit of the log, after which the name can be used again."""
        for coordinator in self.list_led():
            coordinator.forget_topic(name)
        for gained in self.gained.values():
            gained.deleted[name] = None

    def handle_request(
        self,
        kind: RequestKind[RequestT, ResponseT],
        client: Client,
        version: int,
        request: RequestT,
    ) -> asyncio.Future[ResponseT]:
        """Have the coordinator of the group decide on a request. A parked request (JoinGroup,
        SyncGroup) completes later: the caller may serve other requests meanwhile. Topics of
        requests about offsets must exist and have names; the members of a LeaveGroup are in
        `request.members` in every version; the handlers see to both."""
        group_id = kind.group_of(request)
        coordinator = self.find_coordinator(group_id)
        if coordinator is None:
            future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()
            future.set_result(kind.error(request, int(self._refusal(group_id, request))))
            return future
        fresh_id = ""
        joins = JoinGroupRequest | ConsumerGroupHeartbeatRequest
        if isinstance(request, joins) and not request.member_id:
            # Machines have no source of randomness.
            fresh_id = str(UUID(bytes=self.env.random.randbytes(16)))
        return coordinator.handle_request(kind, request, version, client, fresh_id)

    def heartbeat_now(self, request: HeartbeatRequest) -> ErrorCode | None:
        """Answer a Heartbeat immediately, as is nearly always possible; None without any effect if
        it has to wait for a commit: then use `handle_request`. Hot."""
        coordinator = self.find_coordinator(request.group_id)
        if coordinator is None:
            return self._refusal(request.group_id, request)
        return coordinator.heartbeat(request)

    def consumer_heartbeat_now(
        self, client: Client, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Answer a heartbeat that changes nothing; None without any effect if it is to be decided
        on: then use `handle_request`. Hot."""
        coordinator = self.find_coordinator(request.group_id)
        return None if coordinator is None else coordinator.consumer_heartbeat(client, request)

    async def verify_transaction(self, version: int, request: TxnOffsetCommitRequest) -> Verified:
        """Have the transaction coordinator verify (from version 5: add) the partition of the group.
        Return NONE and the guard for the append, or the code for the client."""
        # Without it a late TxnOffsetCommit would open a transaction that no marker ends (KIP-890).
        if self._closed:
            return Verified(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not request.group_id:
            return Verified(ErrorCode.INVALID_GROUP_ID)
        coordinator = self.find_coordinator(request.group_id)
        if coordinator is None or self._verify is None:
            return Verified(self.absence(request.group_id))
        verified = await self._verify(
            Verification(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                coordinator.partition.index,
                version >= ADDS_FROM,
            )
        )
        return verified._replace(code=verification_code(verified.code, version))

    async def write_marker(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """End a transaction in a partition of the offsets topic: NONE once the marker is committed
        and its pending offsets are current or dropped. The only way to write a marker there."""
        # By the coordinator, not by the partition alone: otherwise the next commits of the groups
        # would mix with offsets that are still pending (KAFKA-17507).
        exists = 0 <= partition < len(self.coordinators)
        found = self.coordinators[partition] if exists else None
        if found is None:
            loading = partition in self.gained
            return self.absence_at(partition) if loading else ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = await found.handle_request(MARKER, WriteMarker(marker), 0, BROKER)
        return ErrorCode(answer.error_code)

    async def describe_groups(
        self, client: Client, version: int, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        """Describe each group once, in request order, with an error for each."""
        groups = await self._submit_each(
            DESCRIBE,
            client,
            version,
            request.groups,
            lambda one: DescribeGroupsRequest(groups=[one]),
            lambda response: response.groups[0],
        )
        return DescribeGroupsResponse(groups=groups)

    async def describe_each(
        self, kind: RequestKind[Any, Any], client: Client, version: int, group_ids: list[str]
    ) -> list[Any]:
        """Describe each group once, in order, with an error for each. `kind`: CONSUMER_DESCRIBE,
        SHARE_DESCRIBE or STREAMS_DESCRIBE."""
        return await self._submit_each(
            kind, client, version, group_ids,
            lambda one: kind.request(group_ids=[one]),
            lambda response: response.groups[0],
        )  # fmt: skip

    async def delete_groups(
        self, client: Client, version: int, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        """Delete each group once, in request order, with an error for each."""
        results = await self._submit_each(
            DELETE, client, version, request.groups_names,
            lambda one: DeleteGroupsRequest(groups_names=[one]),
            lambda response: response.results[0],
            partial(self._forget_most, client, version),
        )  # fmt: skip
        return DeleteGroupsResponse(results=results)

    async def _submit_each(
        self,
        kind: RequestKind[RequestT, ResponseT],
        client: Client,
        version: int,
        group_ids: list[str],
        request_for: Callable[[str], RequestT],
        entry_of: Callable[[ResponseT], EntryT],
        prepare: Callable[[str], Awaitable[None]] | None = None,
    ) -> list[EntryT]:
        """Submit a request for each group, once, after `prepare`; return the entries of the
        responses, in order."""
        entries: list[EntryT] = []
        unanswered: list[asyncio.Future[ResponseT]] = []
        distinct = await slices.count_keys(group_ids, self.env.slices.give_way)
        # A request each: the groups belong to different coordinators.
        for group_id in distinct:
            if prepare is not None:
                await prepare(group_id)
            unanswered.append(self.handle_request(kind, client, version, request_for(group_id)))
            await self.env.slices.give_way()
            if len(unanswered) == MAX_UNANSWERED:
                entries += [entry_of(await future) for future in unanswered]
                unanswered.clear()
        entries += [entry_of(await future) for future in unanswered]
        await slices.empty_slowly(distinct, self.env.slices.give_way)
        return entries

    async def _forget_most(self, client: Client, version: int, group_id: str) -> None:
        """Forget most offsets of a group that will be deleted, in portions."""
        # The coordinator encodes the tombstones of one decision in one step.
        coordinator = self.find_coordinator(group_id)
        # A group with members is not deleted, whatever it has committed.
        if coordinator is None or not coordinator.shard.is_empty(group_id):
            return
        # Some are kept: a group that only stores offsets is removed with the last one, and then
        # DeleteGroups would not find it.
        kept = FORGOTTEN_AT_ONCE
        for name, partitions in coordinator.shard.offsets.list_partitions(group_id).items():
            indexes = partitions[kept:]
            kept = max(0, kept - len(partitions))
            for start in range(0, len(indexes), FORGOTTEN_AT_ONCE):
                entries = [
                    OffsetDeleteRequestPartition(partition_index=index)
                    for index in indexes[start : start + FORGOTTEN_AT_ONCE]
                ]
                part = OffsetDeleteRequestTopic(name=name, partitions=entries)
                request = OffsetDeleteRequest(group_id=group_id, topics=[part])
                self.handle_request(OFFSET_DELETE, client, version, request)
                await self.env.slices.pause()

    async def list_groups(
        self, client: Client, version: int, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        """List the groups of all partitions led by this broker; an error without groups while one
        of them is loading."""
        response = ListGroupsResponse()
        # In a list without its groups they would seem to be deleted.
        if self.gained:
            return LIST.error(request, int(CoordinatorPhase.LOADING.value))
        for coordinator in self.list_led():
            part = await coordinator.handle_request(LIST, request, version, client)
            if part.error_code:
                return part
            response.groups += part.groups
            await self.env.slices.give_way()
        return response

    def list_committed(self, group_id: str) -> list[OffsetFetchRequestTopics]:
        coordinator = self.find_coordinator(group_id)
        return [] if coordinator is None else coordinator.shard.offsets.as_request(group_id)

    async def activity(
        self, group_id: str, give_way: Callable[[], Awaitable[None]]
    ) -> GroupActivityResponse:
        """Return who of a group has joined, and when its offsets were committed; the error of a
        coordinator that is loading, elsewhere or closed."""
        coordinator = self.find_coordinator(group_id)
        code = self.absence(group_id) if coordinator is None else coordinator.phase.value
        if coordinator is None or code is not ErrorCode.NONE:
            return GroupActivityResponse(error_code=int(code))
        shard = coordinator.shard
        return await activity(shard.group_with_offsets(group_id), group_id, shard.offsets, give_way)

    def _refusal(self, group_id: str, request: object) -> ErrorCode:
        code = self.absence(group_id)
        # As by a coordinator that is loading.
        if code is CoordinatorPhase.LOADING.value and isinstance(request, HeartbeatRequest):
            return ErrorCode.NONE
        return code
