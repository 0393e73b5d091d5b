"""CreateDelegationToken (key 38): a new delegation token."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class CreatableRenewers:
    """One principal that may renew the token."""

    principal_type: str = ""
    principal_name: str = ""
    unknown_tags: UnknownTags = None


@request(key=38, versions=(1, 3), flexible_from=2)
class CreateDelegationTokenRequest:
    """v3 adds the owner."""

    owner_principal_type: Annotated[str | None, since(3)] = ""
    owner_principal_name: Annotated[str | None, since(3)] = ""
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: int64 = 0
    unknown_tags: UnknownTags = None


@response(key=38, versions=(1, 3), flexible_from=2)
class CreateDelegationTokenResponse:
    """The token with its secret. v3 adds the requester."""

    error_code: int16 = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: Annotated[str, since(3)] = ""
    token_requester_principal_name: Annotated[str, since(3)] = ""
    issue_timestamp_ms: int64 = 0
    expiry_timestamp_ms: int64 = 0
    max_timestamp_ms: int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: int32 = 0
    unknown_tags: UnknownTags = None
