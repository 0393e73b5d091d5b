"""Metadata: which brokers and topics there are, and who leads what.

Every client requests it first, and again every few minutes; with null topics it is the largest
response. So the response for all topics is cached as bytes until the catalog changes, and long ones
are built in slices. `topic_parts` encodes topics; the topic service creates them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from kafkawire.broker.new_topics import missing_topic_error
from kafkawire.codec.compile import encode, encoder
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.schema import info_of
from kafkawire.codec.types import ZERO_UUID, Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.nodes import (
    OPERATIONS_OMITTED,
    Nodes,
    cluster_operations,
    is_internal,
    topic_operations,
)
from kafkawire.handlers.slices import array_count, joining, split
from kafkawire.handlers.topic_parts import TopicEncoder, TopicEntry, compile_parts
from kafkawire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from kafkawire.security.acls.model import Operation

if TYPE_CHECKING:
    from kafkawire.metadata.catalog import TopicInfo

NEVER_STRICT = 1 << 15
"""Created topics are only counted: no version of Metadata has an error for a quota."""


def compile_answer(version: int) -> None:
    """Compile the encoders of this handler, which encodes its answers itself; in any thread."""
    encoder(MetadataResponse, version)
    compile_parts(version)


async def metadata(ctx: RequestContext, req: MetadataRequest) -> list[Buffer]:
    """Metadata v0-13.

    v0 takes an empty list as all topics, v1+ null (empty = none), with controller, racks and
    internal topics; v2 cluster id; v3 throttle time; v4 AllowAutoTopicCreation (before: always); v5
    offline replicas; v6 LISTENER_NOT_FOUND; v7 leader epochs; v8 authorized operations; v9
    flexible; v10 topic ids in the answer; v11 no cluster operations; v12 topics by id; v13
    top-level error. Brokers that are not alive are left out, and what they lead has no leader. With
    replica.selector.class readers are replicas (kafkawire.broker.rack_reads).
    """
    if req.topics is None or (ctx.version == 0 and not req.topics):
        if ctx.rights is not None:
            return await _all_visible(ctx, req)
        key = (
            ctx.version,
            ctx.listener,
            req.include_topic_authorized_operations,
            req.include_cluster_authorized_operations,
        )

        async def make() -> list[Buffer]:
            # Names are read first, topics when they are encoded: a topic deleted meanwhile is
            # missing.
            names = list(ctx.broker.catalog.by_name)
            every = (_by_name(ctx, name, {}) for name in names)
            return await _encode_response(ctx, req, every, len(names))

        return await ctx.broker.topics.answers.get(key, make)
    entries = await _entries(ctx, req, req.topics)
    try:
        return await _encode_response(ctx, req, entries, len(entries))
    finally:
        await ctx.empty_slowly(entries)


async def _all_visible(ctx: RequestContext, req: MetadataRequest) -> list[Buffer]:
    """Return the topics that the client may describe; the others are hidden."""
    names = await ctx.list_in_slices(list(ctx.broker.catalog.by_name))
    visible = await ctx.list_in_slices(
        name for name in names if ctx.may_topic(Operation.DESCRIBE, name, logged=False)
    )
    return await _encode_response(
        ctx, req, (_by_name(ctx, name, {}) for name in visible), len(visible)
    )


async def _entries(
    ctx: RequestContext, req: MetadataRequest, asked: Sequence[MetadataRequestTopic]
) -> list[TopicEntry]:
    if ctx.version < 12 and any(t.name is None or t.topic_id != ZERO_UUID for t in asked):
        # v10 and v11 have an id field, which no Kafka broker ever supported (KAFKA-9618).
        entries = (TopicEntry(ErrorCode.INVALID_REQUEST, t.name or "", t.topic_id) for t in asked)
        return await ctx.list_in_slices(entries)
    ids: dict[bytes, None] = {}
    names: dict[str, None] = {}
    for topic in asked:
        if topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = None
        names[topic.name or ""] = None
        await ctx.give_way()
    if any(topic_id not in ctx.broker.catalog.by_id for topic_id in ids):
        await ctx.broker.topics.follower.catch_up()
    if ids:  # names next to ids are ignored, as in Kafka
        found = await ctx.list_in_slices(_by_id(ctx, topic_id) for topic_id in ids)
        if ctx.rights is not None:
            seen = await ctx.list_in_slices(each for each in found if not each.denied)
            found = seen + await ctx.list_in_slices(each for each in found if each.denied)
    else:
        found = await _entries_by_name(ctx, req, names)
    await ctx.empty_slowly(ids, names)
    return found


async def _entries_by_name(
    ctx: RequestContext, req: MetadataRequest, names: Collection[str]
) -> list[TopicEntry]:
    """Return an entry for each name; missing topics are created if the request and the broker allow
    it."""
    found = ctx.broker.catalog.by_name
    await ctx.find_topics(names)
    config = ctx.broker.config
    creates = req.allow_auto_topic_creation and config.auto_create_topics_enable
    creates = creates and not config.broker_read_only
    missing: list[str] = []
    denied: list[TopicEntry] = []
    visible: list[str] = []
    for name in names:
        if not ctx.may_topic(Operation.DESCRIBE, name):
            denied.append(_refuse_topic(name, ZERO_UUID))
        elif name in found or not creates:
            visible.append(name)
        elif ctx.may_cluster(Operation.CREATE, logged=False) or ctx.may_topic(
            Operation.CREATE, name
        ):
            missing.append(name)
            visible.append(name)
        else:
            denied.append(_refuse_topic(name, ZERO_UUID)._replace(internal=is_internal(name)))
        await ctx.give_way()
    refused: dict[str, ErrorCode] = {}
    if missing:
        refused = await ctx.broker.topics.auto_create(missing, ctx.sender, ctx.charge(NEVER_STRICT))
    entries = await ctx.list_in_slices(_by_name(ctx, name, refused) for name in visible)
    await ctx.empty_slowly(missing, refused, visible)
    return entries + denied


def _refuse_topic(name: str | None, topic_id: bytes) -> TopicEntry:
    return TopicEntry(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, topic_id, internal=False, denied=True
    )


def _by_id(ctx: RequestContext, topic_id: bytes) -> TopicEntry:
    topic = ctx.broker.catalog.by_id.get(topic_id)
    if topic is None:
        return TopicEntry(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    if not ctx.may_topic(Operation.DESCRIBE, topic.name):
        return _refuse_topic(None, topic_id)
    return _entry(ctx, topic)


def _entry(ctx: RequestContext, topic: TopicInfo) -> TopicEntry:
    seen = ctx.broker.catalog.with_source(topic)
    if seen is None:  # a view whose source was deleted: there are partitions when it is there again
        return TopicEntry(ErrorCode.LEADER_NOT_AVAILABLE, topic.name, topic.id, topic)
    return TopicEntry.from_topic(seen)


def _by_name(ctx: RequestContext, name: str, refused: dict[str, ErrorCode]) -> TopicEntry:
    topic = ctx.broker.catalog.by_name.get(name)
    if topic is None:
        return TopicEntry(refused.get(name) or missing_topic_error(name), name, ZERO_UUID)
    return _entry(ctx, topic)


async def _encode_response(
    ctx: RequestContext, req: MetadataRequest, entries: Iterable[TopicEntry], count: int
) -> list[Buffer]:
    version = ctx.version
    flexible = info_of(MetadataResponse).flexible(version)
    nodes = Nodes(ctx)
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in nodes.by_id.values()
        ],
        cluster_id=ctx.broker.cluster_id,
        controller_id=nodes.controller,
        topics=[],
        cluster_authorized_operations=(
            cluster_operations(ctx)
            if req.include_cluster_authorized_operations
            else OPERATIONS_OMITTED
        ),
    )
    # After the topics: cluster_authorized_operations (v8-10), error_code (v13+).
    head, tail = split(
        encode(response, version),
        flexible,
        (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0),
    )
    operations = topic_operations(ctx) if req.include_topic_authorized_operations else None
    parts: list[Buffer] = [head, array_count(count, flexible)]
    encoder = TopicEncoder(nodes, version, flexible, operations, parts)
    joined: list[Buffer] = []
    await ctx.broker.env.slices.run(joining(encoder.steps(entries), parts, joined))
    parts.append(tail)
    return joined + parts
