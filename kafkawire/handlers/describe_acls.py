"""DescribeAcls: the access rules that a filter means (KIP-140, KIP-290)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.acl_wire import NO_AUTHORIZER, check_filter_codes, filter_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def describe_acls(ctx: RequestContext, req: DescribeAclsRequest) -> DescribeAclsResponse:
    """DescribeAcls v1-3.

    v1 kinds of patterns; v2 flexible; v3 users as resources. Rules are grouped by resource.
    Without an authorizer answered as by Kafka: SECURITY_DISABLED, which MirrorMaker and other tools
    expect.
    """
    check_filter_codes(req)
    acls = ctx.broker.security.acls
    if acls is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    found = await acls.find(filter_of(req))
    for acl in found:
        key = acl.resource_type, acl.resource_name, acl.pattern_type
        if key not in resources:
            resources[key] = DescribeAclsResource(*key)
        resources[key].acls.append(
            AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
        )
        await ctx.give_way()
    response = DescribeAclsResponse(resources=await ctx.list_in_slices(resources.values()))
    await ctx.empty_slowly(found, resources)
    return response
