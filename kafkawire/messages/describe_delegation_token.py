"""DescribeDelegationToken (key 41): delegation tokens of some owners."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class DescribeDelegationTokenOwner:
    principal_type: str = ""
    principal_name: str = ""
    unknown_tags: UnknownTags = None


@request(key=41, versions=(1, 3), flexible_from=2)
class DescribeDelegationTokenRequest:
    """Owners; None means all."""

    owners: list[DescribeDelegationTokenOwner] | None = []
    unknown_tags: UnknownTags = None


@struct
class DescribedDelegationTokenRenewer:
    """One principal that may renew the token."""

    principal_type: str = ""
    principal_name: str = ""
    unknown_tags: UnknownTags = None


@struct
class DescribedDelegationToken:
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: Annotated[str, since(3)] = ""
    token_requester_principal_name: Annotated[str, since(3)] = ""
    issue_timestamp: int64 = 0
    expiry_timestamp: int64 = 0
    max_timestamp: int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []
    unknown_tags: UnknownTags = None


@response(key=41, versions=(1, 3), flexible_from=2)
class DescribeDelegationTokenResponse:
    """Tokens with their secrets. v3 adds the requester of each."""

    error_code: int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: int32 = 0
    unknown_tags: UnknownTags = None
