"""DeleteAcls: refused, since this broker has no authorizer."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.describe_acls import NO_AUTHORIZER
from kafkawire.handlers.slices import sliced
from kafkawire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def delete_acls(ctx: RequestContext, req: DeleteAclsRequest) -> list[Buffer]:
    """DeleteAcls v1-3.

    v1 kinds of patterns; v2 flexible; v3 users as resources. Every filter is answered with
    SECURITY_DISABLED, as by a Kafka broker without `authorizer.class.name`.
    Not done: access control.
    """
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return await sliced(
        ctx.broker.env,
        DeleteAclsResponse(),
        ctx.version,
        DeleteAclsFilterResult,
        (refused for _ in req.filters),
        len(req.filters),
    )
