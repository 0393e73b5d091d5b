"""CreateTopics: create topics, with broker.topics."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.broker.overrides import Layers
from kafkawire.broker.resources import topic_entries
from kafkawire.broker.topics import Created
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import ZERO_UUID, Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import sliced
from kafkawire.messages.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CONFIGS_FROM = 5  # KIP-525
REPLICAS = 1  # each partition has one replica, whatever the request


async def create_topics(ctx: RequestContext, req: CreateTopicsRequest) -> list[Buffer]:
    """CreateTopics v2-7.

    v4 -1 for the default number of partitions and replicas; v5 flexible, and the answer holds
    partitions, replicas and settings (KIP-525); v6 quota errors; v7 topic id. Not done: replication
    (a factor up to the number of brokers is accepted, but there is one replica), the timeout (the
    response is sent when it is done), quotas, access control.
    """
    outcomes = await ctx.broker.topics.create(req.topics, req.validate_only, ctx.sender)
    layers = ctx.broker.topics.configs.layers()

    def results() -> Iterator[CreatableTopicResult]:
        for topic, outcome in zip(req.topics, outcomes, strict=True):
            yield _result(ctx.version, topic.name, outcome, layers)

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


def _result(
    version: int, name: str, outcome: Created | KafkaError, layers: Layers
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
    if version >= CONFIGS_FROM:  # a list, never null: Java's admin client fails on null
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
