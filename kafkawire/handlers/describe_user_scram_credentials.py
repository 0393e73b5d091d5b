"""DescribeUserScramCredentials: no user has a credential (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import sliced
from kafkawire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def describe_user_scram_credentials(
    ctx: RequestContext, req: DescribeUserScramCredentialsRequest
) -> list[Buffer]:
    """DescribeUserScramCredentials v0.

    For all users the response is empty; a named user is RESOURCE_NOT_FOUND, one named twice
    DUPLICATE_RESOURCE, as in Kafka (ScramImage.describe). Not done: credentials.
    """
    users = await ctx.counted(user.name for user in req.users or ())
    try:
        return await sliced(
            ctx.broker.env,
            DescribeUserScramCredentialsResponse(error_message=None),
            ctx.version,
            DescribeUserScramCredentialsResult,
            _results(users),
            len(users),
        )
    finally:
        await ctx.emptied(users)


def _results(users: dict[str, int]) -> Iterator[DescribeUserScramCredentialsResult]:
    for name, count in users.items():
        twice = count > 1
        yield DescribeUserScramCredentialsResult(
            user=name,
            error_code=ErrorCode.DUPLICATE_RESOURCE if twice else ErrorCode.RESOURCE_NOT_FOUND,
            error_message=(
                f"Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{name}"
                if twice
                else f"Attempt to describe a user credential that does not exist: {name}"
            ),
        )
