"""AlterUserScramCredentials (key 51): SCRAM credentials set or removed."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class ScramCredentialDeletion:
    """One credential to remove."""

    name: str = ""
    mechanism: int8 = 0
    unknown_tags: UnknownTags = None


@struct
class ScramCredentialUpsertion:
    """One credential to set."""

    name: str = ""
    mechanism: int8 = 0
    iterations: int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""
    unknown_tags: UnknownTags = None


@request(key=51, versions=(0, 0), flexible_from=0)
class AlterUserScramCredentialsRequest:
    """Credentials to remove and to set; passwords come salted."""

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []
    unknown_tags: UnknownTags = None


@struct
class AlterUserScramCredentialsResult:
    user: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@response(key=51, versions=(0, 0), flexible_from=0)
class AlterUserScramCredentialsResponse:
    """An error code per user."""

    throttle_time_ms: int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
    unknown_tags: UnknownTags = None
