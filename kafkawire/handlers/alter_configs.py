"""AlterConfigs: replace all settings of a resource; superseded by IncrementalAlterConfigs."""

from __future__ import annotations

from kafkawire.broker.config_service import AlterConfigOp, Op, Resource
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.describe_configs import config_refusal
from kafkawire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kafkawire.messages.incremental_alter_configs import AlterConfigsResourceResponse
from kafkawire.security.acls.model import Operation


async def alter_configs(ctx: RequestContext, req: AlterConfigsRequest) -> AlterConfigsResponse:
    """AlterConfigs v0-2.

    v2 flexible. Settings that the request does not name return to their default, so old tools send
    all settings to change one. Resources: topics, this broker, all brokers (""), groups, client
    metrics subscriptions.
    """
    resources = []
    for resource in req.resources:
        wishes = (AlterConfigOp(config.name, Op.SET, config.value) for config in resource.configs)
        kind, name = resource.resource_type, resource.resource_name
        resources.append(Resource(kind, name, await ctx.list_in_slices(wishes), replace=True))
        await ctx.give_way()
    errors = await alter_allowed(ctx, resources, validate_only=req.validate_only)
    responses = (
        AlterConfigsResourceResponse(
            error_code=0 if error is None else error.code,
            error_message=None if error is None else error.message or error.code.sentence,
            resource_type=resource.type,
            resource_name=resource.name,
        )
        for resource, error in zip(resources, errors, strict=True)
    )
    return AlterConfigsResponse(responses=await ctx.list_in_slices(responses))


async def alter_allowed(
    ctx: RequestContext, resources: list[Resource], *, validate_only: bool
) -> list[KafkaError | None]:
    """Change the settings that the client may change; return an error or None for each resource.
    Settings of brokers are checked before rights, as in Kafka."""
    alter = ctx.broker.topics.configs.alter
    if ctx.rights is None:
        return await alter(resources, validate_only, ctx.sender)
    allowed: list[Resource] = []
    refused: dict[int, KafkaError] = {}
    for index, resource in enumerate(resources):
        code = config_refusal(ctx, Operation.ALTER_CONFIGS, resource.type, resource.name)
        if code is None:
            allowed.append(resource)
        else:
            refused[index] = KafkaError(code)
            if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                (invalid,) = await alter([resource], True, ctx.sender)
                refused[index] = invalid or refused[index]
        await ctx.give_way()
    made = iter(await alter(allowed, validate_only, ctx.sender))
    return await ctx.list_in_slices(
        refused[index] if index in refused else next(made) for index in range(len(resources))
    )
