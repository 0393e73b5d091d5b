"""DescribeUserScramCredentials (key 50): DescribeUserScramCredentials"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class UserName:
    """One entry of `users`."""

    name: str = ""
    unknown_tags: UnknownTags = None


@request(key=50, versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsRequest:
    """DescribeUserScramCredentialsRequest"""

    users: list[UserName] | None = []
    unknown_tags: UnknownTags = None


@struct
class CredentialInfo:
    """One entry of `credential_infos`."""

    mechanism: int8 = 0
    iterations: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class DescribeUserScramCredentialsResult:
    """One entry of `results`."""

    user: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []
    unknown_tags: UnknownTags = None


@response(key=50, versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsResponse:
    """DescribeUserScramCredentialsResponse"""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
    unknown_tags: UnknownTags = None
