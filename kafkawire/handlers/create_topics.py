"""CreateTopics: create topics, with broker.topics."""

from __future__ import annotations

from kafkawire.broker.overrides import Layers
from kafkawire.broker.resources import list_as_kafka, topic_entries
from kafkawire.broker.topics import Created
from kafkawire.codec.configs.view_rules import VIEW_SOURCE
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID, Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafkawire.security.acls.model import Operation

CONFIGS_FROM = 5  # KIP-525
STRICT_FROM = 6
REPLICAS = 1  # each partition has one replica, whatever the request


async def create_topics(ctx: RequestContext, req: CreateTopicsRequest) -> list[Buffer]:
    """CreateTopics v2-7.

    v4 -1 for the default number of partitions and replicas; v5 flexible, and the answer holds
    partitions, replicas and settings (KIP-525); v6 quota errors; v7 topic id. Not done: the
    replication factor (one up to the number of brokers is accepted; `durability` decides), the
    timeout (the response is sent when it is done).
    """
    outcomes = await _outcomes(ctx, req)
    layers = list_as_kafka(ctx.broker.topics.configs.layers())
    results = (_result(ctx, name, outcome, layers) for name, outcome in outcomes.items())
    try:
        return await encode_list_in_slices(
            ctx.broker.env,
            CreateTopicsResponse(),
            ctx.version,
            CreatableTopicResult,
            results,
            len(outcomes),
        )
    finally:
        await ctx.empty_slowly(outcomes)


async def _outcomes(
    ctx: RequestContext, req: CreateTopicsRequest
) -> dict[str, Created | KafkaError]:
    """Create the topics that the client may create; return a result for each name."""
    topics, charge = ctx.broker.topics, ctx.charge(STRICT_FROM)
    may_all = ctx.may_cluster(Operation.CREATE, logged=False)
    count = await ctx.count_keys(topic.name for topic in req.topics)
    outcomes: dict[str, Created | KafkaError] = {}
    allowed: list[CreatableTopic] = []
    denied = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    for topic in req.topics:
        outcomes[topic.name] = denied  # until it is created: the results are in the request's order
        if count[topic.name] > 1:
            outcomes[topic.name] = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif (may_all or ctx.may_topic(Operation.CREATE, topic.name)) and (
            await _may_read_source(ctx, topic)
        ):
            allowed.append(topic)
        await ctx.give_way()
    made = await topics.create(allowed, req.validate_only, ctx.sender, charge)
    for topic, outcome in zip(allowed, made, strict=True):
        outcomes[topic.name] = outcome
        await ctx.give_way()
    await ctx.empty_slowly(count, allowed, made)
    return outcomes


async def _may_read_source(ctx: RequestContext, topic: CreatableTopic) -> bool:
    """Return whether the client may create a topic that is a view: it must be able to read the
    source."""
    for entry in topic.configs if ctx.rights is not None else ():
        if entry.name == VIEW_SOURCE and not ctx.may_topic(Operation.READ, entry.value or ""):
            return False
        await ctx.give_way()
    return True


def _result(
    ctx: RequestContext, name: str, outcome: Created | KafkaError, layers: Layers
) -> CreatableTopicResult:
    if isinstance(outcome, KafkaError):
        return CreatableTopicResult(
            name=name,
            error_code=outcome.code,
            error_message=outcome.message or outcome.code.sentence,
        )
    result = CreatableTopicResult(
        name=name,
        topic_id=outcome.topic.id if outcome.topic is not None else ZERO_UUID,
        error_message=None,
        num_partitions=outcome.partitions,
        replication_factor=REPLICAS,
    )
    if ctx.version >= CONFIGS_FROM and not ctx.may_topic(
        Operation.DESCRIBE_CONFIGS, name, logged=False
    ):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions = result.replication_factor = -1
        result.configs = []
    elif ctx.version >= CONFIGS_FROM:  # a list, never null: Java's admin client fails on null
        result.configs = [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.text,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in topic_entries(outcome.configs, layers, None)
        ]
    return result
