"""DescribeUserScramCredentials: which users have SCRAM credentials (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kafkawire.security.acls.model import Operation
from kafkawire.security.sasl.credentials import Credentials


async def describe_user_scram_credentials(
    ctx: RequestContext, req: DescribeUserScramCredentialsRequest
) -> list[Buffer]:
    """DescribeUserScramCredentials v0.

    No names, or null: all users. An unknown user is RESOURCE_NOT_FOUND, one named twice
    DUPLICATE_RESOURCE, as in Kafka (ScramImage.describe). The answer has mechanisms and iterations,
    never salts or keys.
    """
    if not ctx.may_cluster(Operation.DESCRIBE):
        no = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return await encode_list_in_slices(
            ctx.broker.env,
            DescribeUserScramCredentialsResponse(error_code=no, error_message=no.sentence),
            ctx.version,
            DescribeUserScramCredentialsResult,
            (DescribeUserScramCredentialsResult("", no, no.sentence) for _ in req.users or ()),
            len(req.users or ()),
        )
    known = await ctx.broker.load_users()
    asked = await ctx.count_keys(user.name for user in req.users or ())
    users = asked or await known.names()
    try:
        return await encode_list_in_slices(
            ctx.broker.env,
            DescribeUserScramCredentialsResponse(),
            ctx.version,
            DescribeUserScramCredentialsResult,
            _results(users, known),
            len(users),
        )
    finally:
        await ctx.empty_slowly(users)


def _results(
    users: dict[str, int], known: Credentials
) -> Iterator[DescribeUserScramCredentialsResult]:
    for name, count in users.items():
        code, text = 0, ""
        kinds = known.users.get(name, {})
        if count > 1:
            code, kinds = int(ErrorCode.DUPLICATE_RESOURCE), {}
            text = (
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{name}"
            )
        elif not kinds:
            code = int(ErrorCode.RESOURCE_NOT_FOUND)
            text = f"Attempt to describe a user credential that does not exist: {name}"
        infos = [CredentialInfo(int(kind), each.iterations) for kind, each in kinds.items()]
        yield DescribeUserScramCredentialsResult(name, code, text, infos)
