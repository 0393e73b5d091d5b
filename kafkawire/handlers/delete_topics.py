"""DeleteTopics: by name or by id."""

from __future__ import annotations

from collections.abc import Container

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import free_in_steps
from kafkawire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kafkawire.metadata.catalog import TopicInfo
from kafkawire.security.acls.model import Operation

BY_ID_FROM = 6
STRICT_FROM = 5


async def delete_topics(ctx: RequestContext, req: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """DeleteTopics v1-6.

    v3 TOPIC_DELETION_DISABLED (before: INVALID_REQUEST); v4 flexible; v5 error message; v6 by id.
    When the response is sent the topic is deleted: its name can be used again, and waiting Fetches
    have been answered. Not done: the timeout. Internal topics cannot be deleted
    (unlike in Kafka).
    """
    wanted = (
        req.topics
        if ctx.version >= BY_ID_FROM
        else await ctx.list_in_slices(DeleteTopicState(name=name) for name in req.topic_names)
    )
    if not ctx.broker.config.delete_topic_enable:
        disabled = KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED if ctx.version >= 3 else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled.",
        )
        refusals = (_result(topic.name, topic.topic_id, disabled) for topic in wanted)
        return DeleteTopicsResponse(responses=await ctx.list_in_slices(refusals))
    await ctx.find_topics(topic.name for topic in wanted if topic.name is not None)
    checked = await _check_topics(ctx, wanted)
    ids = await ctx.list_in_slices(topic_id for _, topic_id, fault in checked if fault is None)
    # Names are read first: the catalog forgets those of deleted ids.
    names: dict[bytes, str] = {}
    for topic_id in ids:
        topic = ctx.broker.catalog.by_id.get(topic_id)
        if topic is not None:
            names[topic_id] = topic.name
        await ctx.give_way()
    refused = await ctx.broker.topics.delete(ids, ctx.sender, ctx.charge(STRICT_FROM))
    results = (
        _result(
            names.get(topic_id, name) if fault is None else name,
            topic_id,
            refused.get(topic_id) if fault is None else fault,
        )
        for name, topic_id, fault in checked
    )
    response = DeleteTopicsResponse(responses=await ctx.list_in_slices(results))
    await ctx.empty_slowly(checked, ids, names, refused)
    if ctx.version < BY_ID_FROM:
        await ctx.broker.env.slices.run(free_in_steps(wanted))
    return response


Asked = tuple[str | None, bytes]
"""Name and id as requested."""

Checked = tuple[str | None, bytes, KafkaError | None]


async def _check_topics(ctx: RequestContext, wanted: list[DeleteTopicState]) -> list[Checked]:
    """Return (name, id, error) for each distinct topic to delete (Kafka: ControllerApis)."""
    asked = await ctx.count_keys((each.name, each.topic_id) for each in wanted)
    checked: list[Checked] = []
    for (name, topic_id), count in asked.items():
        if name is None and topic_id == ZERO_UUID:
            fault = _invalid("Neither topic name nor id were specified.")
            checked.append((name, topic_id, fault))
        elif name is not None and topic_id != ZERO_UUID:
            fault = _invalid("You may not specify both topic name and topic id.")
            checked.append((name, topic_id, fault))
        elif count > 1:
            what = "id" if name is None else "name"
            checked.append((name, topic_id, _invalid(f"Duplicate topic {what}.")))
        elif name is not None:
            checked.append(_check_name(ctx, name, asked))
        else:
            checked += _check_id(ctx, topic_id, asked)
        await ctx.give_way()
    await ctx.empty_slowly(asked)
    return checked


def _check_name(ctx: RequestContext, name: str, asked: Container[Asked]) -> Checked:
    topic = ctx.broker.catalog.by_name.get(name)
    fault = _name_fault(ctx, name, topic)
    if fault is not None or topic is None:
        return name, ZERO_UUID, fault  # an id would say that it exists
    if (None, topic.id) in asked:
        fault = _invalid("The provided topic name maps to an ID that was already supplied.")
    return name, topic.id, fault


def _check_id(ctx: RequestContext, topic_id: bytes, asked: dict[Asked, int]) -> list[Checked]:
    """Return nothing if the same topic is requested by name, too: the result of the name is an
    error, and the topic is not deleted."""
    topic = ctx.broker.catalog.by_id.get(topic_id)
    if topic is None:
        return [(None, topic_id, None)]
    if not _may(ctx, Operation.DELETE, topic.name):
        shown = ctx.may_topic(Operation.DESCRIBE, topic.name, logged=False)
        fault = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return [(topic.name if shown else None, topic_id, fault)]
    if asked.get((topic.name, ZERO_UUID)) == 1 and _name_fault(ctx, topic.name, topic) is None:
        return []
    return [(None, topic_id, None)]


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


def _name_fault(ctx: RequestContext, name: str, topic: TopicInfo | None) -> KafkaError | None:
    """Return why the topic of this name is not deleted. Without the right to describe it the error
    does not depend on whether it exists."""
    if not _may(ctx, Operation.DESCRIBE, name):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not _may(ctx, Operation.DELETE, name):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


def _may(ctx: RequestContext, operation: Operation, name: str) -> bool:
    return ctx.may_cluster(Operation.DELETE, logged=False) or ctx.may_topic(operation, name)


def _result(name: str | None, topic_id: bytes, error: KafkaError | None) -> DeletableTopicResult:
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    if error is not None:
        result.error_code = error.code
        result.error_message = error.message or error.code.sentence
    return result
