"""DeleteTopics: by name or by id."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import released
from kafkawire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
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
        else await ctx.collect(DeleteTopicState(name=name) for name in req.topic_names)
    )
    if not ctx.broker.config.delete_topic_enable:
        disabled = KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED if ctx.version >= 3 else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled.",
        )
        refusals = (_result(topic.name, topic.topic_id, disabled) for topic in wanted)
        return DeleteTopicsResponse(responses=await ctx.collect(refusals))
    await ctx.find_topics(topic.name for topic in wanted if topic.name is not None)
    checked = await _checked(ctx, wanted)
    ids = await ctx.collect(topic_id for _, topic_id, fault in checked if fault is None)
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
    response = DeleteTopicsResponse(responses=await ctx.collect(results))
    await ctx.emptied(checked, ids, names, refused)
    if ctx.version < BY_ID_FROM:
        await ctx.broker.env.slices.run(released(wanted))
    return response


Asked = tuple[str | None, bytes]
"""Name and id as requested."""

Checked = tuple[str | None, bytes, KafkaError | None]


async def _checked(ctx: RequestContext, wanted: list[DeleteTopicState]) -> list[Checked]:
    """Return (name, id, error) for each distinct topic to delete (Kafka: ControllerApis)."""
    catalog = ctx.broker.catalog
    asked = await ctx.counted((each.name, each.topic_id) for each in wanted)
    checked: list[Checked] = []
    taken: set[bytes] = set()
    for (name, topic_id), count in _ids_first(asked):
        fault: tuple[ErrorCode, str] | None = None
        asks_by_name = topic_id == ZERO_UUID
        if name is None and topic_id == ZERO_UUID:
            fault = ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
        elif name is not None and topic_id != ZERO_UUID:
            fault = ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        elif count > 1:
            what = "id" if name is None else "name"
            fault = ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}."
        elif name is not None:
            topic = catalog.by_name.get(name)
            if topic is not None:
                topic_id = topic.id
            fault = _fault(ctx, name, exists=topic is not None, taken=topic_id in taken)
        elif (found := catalog.by_id.get(topic_id)) is not None and not _may_delete(
            ctx, found.name
        ):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            fault = code, code.sentence
            if ctx.may_topic(Operation.DESCRIBE, found.name, logged=False):
                name = found.name
        await ctx.give_way()
        taken.add(topic_id)
        if fault is not None and fault[0] is ErrorCode.TOPIC_AUTHORIZATION_FAILED and asks_by_name:
            topic_id = ZERO_UUID  # its id would say that it exists
        checked.append((name, topic_id, None if fault is None else KafkaError(*fault)))
    await ctx.emptied(asked, taken)
    return checked


def _fault(
    ctx: RequestContext, name: str, *, exists: bool, taken: bool
) -> tuple[ErrorCode, str] | None:
    """Return why a topic that is given by name is not deleted. Who may not describe it does not
    see whether it exists."""
    code: ErrorCode | None = None
    if taken:
        return (
            ErrorCode.INVALID_REQUEST,
            "The provided topic name maps to an ID that was already supplied.",
        )
    if exists and not _may_delete(ctx, name):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif not exists:
        may_see = ctx.may_cluster(Operation.DELETE, logged=False) or ctx.may_topic(
            Operation.DESCRIBE, name
        )
        code = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if may_see
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
    return None if code is None else (code, code.sentence)


def _may_delete(ctx: RequestContext, name: str) -> bool:
    return ctx.may_cluster(Operation.DELETE, logged=False) or ctx.may_topic(Operation.DELETE, name)


def _ids_first(asked: dict[Asked, int]) -> Iterator[tuple[Asked, int]]:
    """Sort ids before names: if a name and an id of a request are the same topic, the name gets the
    error."""
    for by_name in (False, True):
        for key, count in asked.items():
            if (key[0] is not None) is by_name:
                yield key, count


def _result(name: str | None, topic_id: bytes, error: KafkaError | None) -> DeletableTopicResult:
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    if error is not None:
        result.error_code = error.code
        result.error_message = error.message or error.code.sentence
    return result
