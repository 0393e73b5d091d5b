"""DescribeUserScramCredentials (key 50): which users have SCRAM credentials."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class UserName:
    name: str = ""
    unknown_tags: UnknownTags = None


@request(key=50, versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsRequest:
    """Users; None means all."""

    users: list[UserName] | None = []
    unknown_tags: UnknownTags = None


@struct
class CredentialInfo:
    """One credential without its secret."""

    mechanism: int8 = 0
    iterations: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class DescribeUserScramCredentialsResult:
    """One user's credentials."""

    user: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []
    unknown_tags: UnknownTags = None


@response(key=50, versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations per user, never a secret."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
    unknown_tags: UnknownTags = None
