"""AlterConfigs: replace all settings of a resource; superseded by IncrementalAlterConfigs."""

from __future__ import annotations

from kafkawire.broker.config_service import AlterConfigOp, Op, Resource
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kafkawire.messages.incremental_alter_configs import AlterConfigsResourceResponse


async def alter_configs(ctx: RequestContext, req: AlterConfigsRequest) -> AlterConfigsResponse:
    """AlterConfigs v0-2.

    v2 flexible. Settings that the request does not name return to their default, so old tools send
    all settings to change one. Resources: topics, this broker, all brokers (""). Not done: access
    control.
    """
    resources = []
    for resource in req.resources:
        wishes = (AlterConfigOp(config.name, Op.SET, config.value) for config in resource.configs)
        kind, name = resource.resource_type, resource.resource_name
        resources.append(Resource(kind, name, await ctx.collect(wishes), replace=True))
        await ctx.give_way()
    errors = await ctx.broker.topics.configs.alter(resources, req.validate_only, ctx.sender)
    responses = (
        AlterConfigsResourceResponse(
            error_code=0 if error is None else error.code,
            error_message=None if error is None else error.message or error.code.sentence,
            resource_type=resource.type,
            resource_name=resource.name,
        )
        for resource, error in zip(resources, errors, strict=True)
    )
    return AlterConfigsResponse(responses=await ctx.collect(responses))
