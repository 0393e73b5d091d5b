"""DescribeAcls (key 29): access rules that match a filter."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@request(key=29, versions=(1, 3), flexible_from=2)
class DescribeAclsRequest:
    """A filter. v1 adds the kind of pattern; v3 users as resources."""

    resource_type_filter: int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int8 = 0
    permission_type: int8 = 0
    unknown_tags: UnknownTags = None


@struct
class AclDescription:
    principal: str = ""
    host: str = ""
    operation: int8 = 0
    permission_type: int8 = 0
    unknown_tags: UnknownTags = None


@struct
class DescribeAclsResource:
    """One resource with its rules."""

    resource_type: int8 = 0
    resource_name: str = ""
    pattern_type: int8 = 3
    acls: list[AclDescription] = []
    unknown_tags: UnknownTags = None


@response(key=29, versions=(1, 3), flexible_from=2)
class DescribeAclsResponse:
    """The rules found, by resource. v1 adds the kind of pattern."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = []
    unknown_tags: UnknownTags = None
