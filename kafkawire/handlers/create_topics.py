"""CreateTopics: create topics, with broker.topics."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.broker.overrides import Layers
from kafkawire.broker.resources import topic_entries
from kafkawire.broker.topics import Created
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID, Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import sliced
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
    layers = ctx.broker.topics.configs.layers()

    def results() -> Iterator[CreatableTopicResult]:
        for topic, outcome in zip(req.topics, outcomes, strict=True):
            yield _result(ctx, topic.name, outcome, layers)

    try:
        return await sliced(
            ctx.broker.env,
            CreateTopicsResponse(),
            ctx.version,
            CreatableTopicResult,
            results(),
            len(req.topics),
        )
    finally:
        await ctx.emptied(outcomes)


async def _outcomes(ctx: RequestContext, req: CreateTopicsRequest) -> list[Created | KafkaError]:
    """Create the topics that the client may create; return a result for each, in order."""
    topics, charge = ctx.broker.topics, ctx.charge(STRICT_FROM)
    if ctx.rights is None or ctx.may_cluster(Operation.CREATE, logged=False):
        return await topics.create(req.topics, req.validate_only, ctx.sender, charge)
    twice = await ctx.duplicates(topic.name for topic in req.topics)
    allowed: list[CreatableTopic] = []
    refused: list[bool] = []
    for topic in req.topics:
        no = topic.name not in twice and not ctx.may_topic(Operation.CREATE, topic.name)
        refused.append(no)
        if not no:
            allowed.append(topic)
        await ctx.give_way()
    made = iter(await topics.create(allowed, req.validate_only, ctx.sender, charge))
    denied = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    await ctx.emptied(twice)
    return await ctx.collect(denied if no else next(made) for no in refused)


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
