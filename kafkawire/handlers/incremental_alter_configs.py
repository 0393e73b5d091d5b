"""IncrementalAlterConfigs: change single settings of a resource (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.broker.config_service import AlterConfigOp, Op, Resource
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.alter_configs import alter_allowed
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_OPERATIONS = {int(op): op for op in Op}


async def incremental_alter_configs(
    ctx: RequestContext, req: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """IncrementalAlterConfigs v0-1.

    v1 flexible. SET, DELETE, and for lists APPEND and SUBTRACT. Resources: topics, this broker, all
    brokers (""), loggers of this broker (not stored, as in Kafka), groups and client metrics
    subscriptions, which need not exist. A change is effective and durable when the response is
    sent.
    """
    faults: dict[int, KafkaError] = {}
    resources: list[Resource] = []
    for index, asked in enumerate(req.resources):
        resource = Resource(asked.resource_type, asked.resource_name, [])
        try:
            resource.wishes = await ctx.list_in_slices(_wishes(asked))
        except KafkaError as error:
            faults[index] = error
        resources.append(resource)
        await ctx.give_way()
    errors = await alter_allowed(ctx, resources, validate_only=req.validate_only)
    responses = (
        _response(resource, faults.get(index) or error)
        for index, (resource, error) in enumerate(zip(resources, errors, strict=True))
    )
    return IncrementalAlterConfigsResponse(responses=await ctx.list_in_slices(responses))


def _wishes(asked: AlterConfigsResource) -> Iterator[AlterConfigOp]:
    for config in asked.configs:
        op = _OPERATIONS.get(config.config_operation)
        if op is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown operations type {config.config_operation}"
            )
        yield AlterConfigOp(config.name, op, config.value)


def _response(resource: Resource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message or error.code.sentence,
        resource_type=resource.type,
        resource_name=resource.name,
    )
