"""ShareAcknowledge v1-2: a member of a share group settles the records that it has acquired.

v2 renews locks (KIP-1222). The checks are in Kafka's order (KafkaApis): feature, group id, right to
read the group, member id, session; then for each partition. ShareFetch shares them, and what it
does with acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.leader_hints import leader_of_partition
from kafkawire.messages.leaders import NodeEndpoint
from kafkawire.messages.share_acknowledge import (
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from kafkawire.messages.share_fetch import (
    AcknowledgementBatch,
    LeaderIdAndEpoch,
    ShareFetchRequest,
)
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.share.partition import Acknowledge
from kafkawire.share.sessions import FINAL, NEW_SESSION, Place
from kafkawire.share.states import AcknowledgeType

MEMBER_ID_MAX = 36
"""Characters of a member id: those of a UUID."""
RENEW_FROM = 2


async def share_acknowledge(
    ctx: RequestContext, req: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Answer when all that was acknowledged is stored, with an error for each partition."""
    group_id, member = check_request(ctx, req)
    shares = await ctx.broker.load_shares()
    if req.share_session_epoch == NEW_SESSION:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    if req.share_session_epoch == FINAL:
        shares.sessions.find(group_id, member)
    else:
        shares.sessions.continue_session(group_id, member, req.share_session_epoch)
    asked: Asked = {}
    for topic in req.topics:
        for partition in topic.partitions:
            asked[topic.topic_id, partition.partition_index] = partition.acknowledgement_batches
            await ctx.give_way()
    acknowledging = Acknowledging(ctx, group_id, member, is_renew=req.is_renew_ack)
    await acknowledging.acknowledge_records(asked)
    results = await acknowledging.finish()
    if req.share_session_epoch == FINAL:
        shares.release_member(group_id, member)
    settings = ctx.broker.config.share_group_settings(group_id)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=settings.record_lock_duration_ms
    )
    hints = Hints(ctx)
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for (topic_id, index), error in results.items():
        if topic_id not in topics:
            topics[topic_id] = ShareAcknowledgeTopicResponse(topic_id)
        row = PartitionData(index, int(error.code), error.message)
        row.current_leader = hints.find((topic_id, index), error.code)
        topics[topic_id].partitions.append(row)
        await ctx.give_way()
    response.responses = list(topics.values())
    response.node_endpoints = hints.endpoints()
    return response


Asked = dict[Place, list[AcknowledgementBatch]]


class AckOutcome(NamedTuple):
    """The result for one partition."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


def check_request(
    ctx: RequestContext, req: ShareFetchRequest | ShareAcknowledgeRequest
) -> tuple[str, str]:
    """Return the group and member of a request. Raises KafkaError."""
    if not ctx.broker.config.share_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if req.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not ctx.may(Operation.READ, ResourceKind.GROUP, req.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    # Whether it is a member, and has these partitions, is not checked, as in Kafka.
    if not req.member_id or len(req.member_id) > MEMBER_ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return req.group_id, req.member_id


def topic_name(ctx: RequestContext, topic_id: bytes) -> str | None:
    info = ctx.broker.catalog.by_id.get(topic_id)
    return None if info is None or topic_id == ZERO_UUID else info.name


class Acknowledging:
    """The acknowledgements of one request, which are stored together with those of others."""

    def __init__(self, ctx: RequestContext, group_id: str, member: str, *, is_renew: bool) -> None:
        self._ctx = ctx
        self._group_id = group_id
        self._member = member
        self._is_renew = is_renew
        self._results: dict[Place, AckOutcome] = {}
        self._waiting: list[tuple[Place, asyncio.Future[None]]] = []

    async def acknowledge_records(self, asked: Asked) -> None:
        """Acknowledge the records of each partition."""
        for place, batches in asked.items():
            try:
                stored = self._acknowledge(place, batches)
                self._results[place] = AckOutcome()
                if stored is not None:
                    self._waiting.append((place, stored))
            except KafkaError as error:
                self._results[place] = AckOutcome(error.code, error.message)
            await self._ctx.give_way()

    async def finish(self) -> dict[Place, AckOutcome]:
        """Return the outcomes when all is stored."""
        if self._waiting:
            self._ctx.park()
        for place, stored in self._waiting:
            try:
                await stored
            except KafkaError as error:
                self._results[place] = AckOutcome(error.code, error.message)
        return self._results

    def _acknowledge(
        self, place: Place, batches: Sequence[AcknowledgementBatch]
    ) -> asyncio.Future[None] | None:
        ctx = self._ctx
        name = topic_name(ctx, place[0])
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        check_batches(batches, renewable=ctx.version >= RENEW_FROM, is_renew=self._is_renew)
        if not ctx.may_topic(Operation.READ, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        info = ctx.broker.catalog.by_id.partition_of(*place)
        if info is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not batches:
            return None
        leader = ctx.broker.shares.find(self._group_id, *place)
        if leader is None:
            # Kafka answers the second code in both cases; after the first clients look up the
            # leader.
            moved = info.leader != ctx.broker.node_id
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER if moved else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        return leader.acknowledge(
            self._member,
            [
                Acknowledge(each.first_offset, each.last_offset, each.acknowledge_types)
                for each in batches
            ],
        )


def check_batches(
    batches: Sequence[AcknowledgementBatch], *, renewable: bool, is_renew: bool
) -> None:
    """Raise INVALID_REQUEST unless batches can be acknowledged (KafkaApis:
    validateAcknowledgementBatches)."""
    end = -1
    for batch in batches:
        types, length = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        most = AcknowledgeType.RENEW if renewable else AcknowledgeType.REJECT
        if (
            length < 1
            or batch.first_offset < end
            or not types
            or (len(types) > 1 and len(types) != length)
            or min(types) < 0
            or max(types) > most
            or (AcknowledgeType.RENEW in types and not is_renew)
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        end = batch.last_offset


class Hints:
    """The leaders of partitions with errors that a response names, and their addresses."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._nodes: dict[int, NodeEndpoint] = {}

    def find(self, place: Place, code: ErrorCode) -> LeaderIdAndEpoch:
        """Return the leader of a partition, -1 if it is not known, after an error that says that it
        is another one; 0 as in Kafka otherwise."""
        if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            return LeaderIdAndEpoch()
        found = leader_of_partition(self._ctx.broker, self._ctx.listener, place)
        if found is None:
            return LeaderIdAndEpoch(-1, -1)
        self._nodes[found.node.node_id] = NodeEndpoint(*found.node)
        return LeaderIdAndEpoch(found.node.node_id, found.epoch)

    def endpoints(self) -> list[NodeEndpoint]:
        return list(self._nodes.values())
