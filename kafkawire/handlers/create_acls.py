"""CreateAcls: refused, since this broker has no authorizer."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.describe_acls import NO_AUTHORIZER
from kafkawire.handlers.slices import sliced
from kafkawire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


async def create_acls(ctx: RequestContext, req: CreateAclsRequest) -> list[Buffer]:
    """CreateAcls v1-3.

    v1 kinds of patterns; v2 flexible; v3 users as resources. Every rule is answered with
    SECURITY_DISABLED, as by a Kafka broker without `authorizer.class.name`.
    Not done: access control.
    """
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return await sliced(
        ctx.broker.env,
        CreateAclsResponse(),
        ctx.version,
        AclCreationResult,
        (refused for _ in req.creations),
        len(req.creations),
    )
