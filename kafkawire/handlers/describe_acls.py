"""DescribeAcls: there are no access rules, since this broker has no authorizer."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured on the broker"


async def describe_acls(ctx: RequestContext, req: DescribeAclsRequest) -> DescribeAclsResponse:
    """DescribeAcls v1-3.

    v1 kinds of patterns; v2 flexible; v3 users as resources. Answered as by a Kafka broker without
    `authorizer.class.name`: SECURITY_DISABLED, which MirrorMaker and other tools expect.
    Not done: access control.
    """
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
