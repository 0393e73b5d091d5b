"""CreateAcls: new access rules (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.handlers.acl_wire import NO_AUTHORIZER_FOR_ITEM, acl_of, check_codes
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from kafkawire.security.acls.model import Acl, Operation
from kafkawire.security.acls.service import AclService, TooManyAcls


async def create_acls(ctx: RequestContext, req: CreateAclsRequest) -> list[Buffer]:
    """CreateAcls v1-3.

    v1 kinds of patterns; v2 flexible; v3 users as resources. Rules are durable when the response is
    sent, and in force at all brokers that are alive (kafkawire.security.following). An
    existing rule is created without an error. Without an authorizer every rule is answered with
    SECURITY_DISABLED, as by Kafka. Rules with U+0000 or a text over 4,096 characters are refused,
    unlike in Kafka.
    """
    for creation in req.creations:
        check_codes(creation)
        await ctx.give_way()
    acls = ctx.broker.security.acls
    results: Iterable[AclCreationResult]
    if acls is None:
        refused = _refuse_creation(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER_FOR_ITEM)
        results = (refused for _ in req.creations)
    elif not ctx.may_cluster(Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        refused = _refuse_creation(code, code.sentence)
        results = (refused for _ in req.creations)
    else:
        results = await _create(ctx, acls, req)
    return await encode_list_in_slices(
        ctx.broker.env,
        CreateAclsResponse(),
        ctx.version,
        AclCreationResult,
        results,
        len(req.creations),
    )


async def _create(
    ctx: RequestContext, acls: AclService, req: CreateAclsRequest
) -> list[AclCreationResult]:
    wanted: list[Acl] = []
    results: list[AclCreationResult] = []
    for creation in req.creations:
        try:
            wanted.append(acl_of(creation))
            results.append(AclCreationResult())
        except KafkaError as error:
            results.append(_refuse_creation(error.code, error.message))
        await ctx.give_way()
    try:
        created = await acls.create(wanted)
    except TooManyAcls as limit:
        refused = _refuse_creation(ErrorCode.POLICY_VIOLATION, str(limit))
        return await ctx.list_in_slices(refused for _ in results)
    finally:
        await ctx.empty_slowly(wanted)
    audit, caller = ctx.broker.security.audit, ctx.caller
    for acl in created:
        audit.record_change(caller, "acl created", acl=str(acl))
        await ctx.broker.env.slices.give_way()  # also for a client that is gone
    await ctx.broker.security.wait_until_enforced()
    return results


def _refuse_creation(code: ErrorCode, message: str | None) -> AclCreationResult:
    return AclCreationResult(error_code=code, error_message=message)
