"""DeleteAcls: remove the access rules that filters mean (KIP-140, KIP-290)."""

from __future__ import annotations

from itertools import chain

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.acl_wire import (
    NO_AUTHORIZER_FOR_ITEM,
    check_filter_codes,
    filter_fault,
    filter_of,
)
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.log.io import slices
from kafkawire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kafkawire.security.acls.model import Acl, AclFilter, Operation
from kafkawire.security.acls.service import AclService, TooManyAcls

MAX_FILTERS = 1_000
"""Filters of a request, each of which is compared with every rule."""


async def delete_acls(ctx: RequestContext, req: DeleteAclsRequest) -> list[Buffer] | object:
    """DeleteAcls v1-3.

    v1 kinds of patterns; v2 flexible; v3 users as resources. A rule that two filters mean is in the
    results of both. The next request of every client is decided without the removed rules. Without
    an authorizer every filter is answered with SECURITY_DISABLED, as by Kafka. More than 1,000
    filters in a request are refused, unlike in Kafka.
    """
    for asked in req.filters:
        check_filter_codes(asked)
        await ctx.give_way()
    acls = ctx.broker.security.acls
    if acls is None:
        refused = _refuse_filter(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER_FOR_ITEM)
    elif not ctx.may_cluster(Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        refused = _refuse_filter(code, code.sentence)
    elif len(req.filters) > MAX_FILTERS:
        text = f"{len(req.filters)} filters in one request; at most {MAX_FILTERS} are allowed."
        refused = _refuse_filter(ErrorCode.INVALID_REQUEST, text)
    else:
        return DeleteAclsResponse(filter_results=await _delete(ctx, acls, req))
    return await encode_list_in_slices(
        ctx.broker.env,
        DeleteAclsResponse(),
        ctx.version,
        DeleteAclsFilterResult,
        (refused for _ in req.filters),
        len(req.filters),
    )


async def _delete(
    ctx: RequestContext, acls: AclService, req: DeleteAclsRequest
) -> list[DeleteAclsFilterResult]:
    results: list[DeleteAclsFilterResult] = []
    valid: list[tuple[AclFilter, DeleteAclsFilterResult]] = []
    for asked in req.filters:
        wanted = filter_of(asked)
        fault = filter_fault(wanted)
        if fault is None:
            results.append(DeleteAclsFilterResult(error_message=None))
            valid.append((wanted, results[-1]))
        else:
            results.append(_refuse_filter(ErrorCode.INVALID_REQUEST, fault))
        await ctx.give_way()
    try:
        found = await acls.delete([wanted for wanted, _ in valid])
    except TooManyAcls as limit:
        return [_refuse_filter(ErrorCode.INVALID_REQUEST, str(limit)) for _ in req.filters]
    give_way = (
        ctx.broker.env.slices.give_way
    )  # every change is recorded, also if the client is gone
    audit, caller = ctx.broker.security.audit, ctx.caller
    removed = await slices.count_keys(chain.from_iterable(found), give_way)
    for acl in removed:
        audit.record_change(caller, "acl deleted", acl=str(acl))
        await give_way()
    await ctx.broker.security.wait_until_enforced()
    for (_, result), matches in zip(valid, found, strict=True):
        result.matching_acls = await ctx.list_in_slices(map(_matching, matches))
    return results


def _refuse_filter(code: ErrorCode, message: str) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=message)


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
