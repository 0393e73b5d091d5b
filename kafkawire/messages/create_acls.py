"""CreateAcls (key 30): new access rules."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class AclCreation:
    """One access rule."""

    resource_type: int8 = 0
    resource_name: str = ""
    resource_pattern_type: int8 = 3
    principal: str = ""
    host: str = ""
    operation: int8 = 0
    permission_type: int8 = 0
    unknown_tags: UnknownTags = None


@request(key=30, versions=(1, 3), flexible_from=2)
class CreateAclsRequest:
    """v1 adds the kind of pattern; v3 users as resources."""

    creations: list[AclCreation] = []
    unknown_tags: UnknownTags = None


@struct
class AclCreationResult:
    """Result for one rule."""

    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@response(key=30, versions=(1, 3), flexible_from=2)
class CreateAclsResponse:
    """One result per rule, in the order of the request."""

    throttle_time_ms: int32 = 0
    results: list[AclCreationResult] = []
    unknown_tags: UnknownTags = None
