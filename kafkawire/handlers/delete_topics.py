"""DeleteTopics: by name or by id."""

from __future__ import annotations

from collections import Counter

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

BY_ID_FROM = 6


async def delete_topics(ctx: RequestContext, req: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """DeleteTopics v1-6.

    v3 TOPIC_DELETION_DISABLED (before: INVALID_REQUEST); v4 flexible; v5 error message; v6 by id.
    When it is answered, the topic is gone: its name is free, waiting fetches have been answered.
    Not done: the timeout, access control. Internal topics cannot be deleted (Kafka lets you).
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
    checked = await _checked(ctx, wanted)
    ids = [topic_id for _, topic_id, fault in checked if fault is None]
    # Names are taken now: afterwards the catalog has forgotten those of the deleted ids.
    names = {i: topic.name for i in ids if (topic := ctx.broker.catalog.by_id.get(i)) is not None}
    refused = await ctx.broker.topics.delete(ids)
    results = (
        _result(
            names.get(topic_id, name) if fault is None else name,
            topic_id,
            refused.get(topic_id) if fault is None else fault,
        )
        for name, topic_id, fault in checked
    )
    response = DeleteTopicsResponse(responses=await ctx.collect(results))
    await ctx.broker.env.slices.run(released(checked))
    return response


Checked = tuple[str | None, bytes, KafkaError | None]


async def _checked(ctx: RequestContext, wanted: list[DeleteTopicState]) -> list[Checked]:
    """(name, id, why not) for each distinct thing to delete (Kafka: ControllerApis)."""
    catalog = ctx.broker.catalog
    asked: Counter[tuple[str | None, bytes]] = Counter()
    for each in wanted:
        asked[each.name, each.topic_id] += 1
        await ctx.give_way()
    checked: list[Checked] = []
    taken: set[bytes] = set()
    # Ids first: a name that means an id of the same request is the fault, not the id.
    for (name, topic_id), count in sorted(asked.items(), key=lambda item: item[0][0] is not None):
        fault: tuple[ErrorCode, str] | None = None
        if name is None and topic_id == ZERO_UUID:
            fault = ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
        elif name is not None and topic_id != ZERO_UUID:
            fault = ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        elif count > 1:
            what = "id" if name is None else "name"
            fault = ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}."
        elif name is not None:
            topic = catalog.by_name.get(name)
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                fault = code, code.sentence
            else:
                topic_id = topic.id
                if topic_id in taken:
                    fault = (
                        ErrorCode.INVALID_REQUEST,
                        "The provided topic name maps to an ID that was already supplied.",
                    )
        await ctx.give_way()
        taken.add(topic_id)
        checked.append((name, topic_id, None if fault is None else KafkaError(*fault)))
    return checked


def _result(name: str | None, topic_id: bytes, error: KafkaError | None) -> DeletableTopicResult:
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    if error is not None:
        result.error_code = error.code
        result.error_message = error.message or error.code.sentence
    return result
