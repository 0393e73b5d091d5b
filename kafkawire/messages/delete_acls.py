"""DeleteAcls (key 31): access rules that match filters go."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class DeleteAclsFilter:
    """One filter; None matches anything."""

    resource_type_filter: int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int8 = 0
    permission_type: int8 = 0
    unknown_tags: UnknownTags = None


@request(key=31, versions=(1, 3), flexible_from=2)
class DeleteAclsRequest:
    """Filters. v1 adds the kind of pattern; v3 users as resources."""

    filters: list[DeleteAclsFilter] = []
    unknown_tags: UnknownTags = None


@struct
class DeleteAclsMatchingAcl:
    """One rule a filter matched."""

    error_code: int16 = 0
    error_message: str | None = ""
    resource_type: int8 = 0
    resource_name: str = ""
    pattern_type: int8 = 3
    principal: str = ""
    host: str = ""
    operation: int8 = 0
    permission_type: int8 = 0
    unknown_tags: UnknownTags = None


@struct
class DeleteAclsFilterResult:
    error_code: int16 = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []
    unknown_tags: UnknownTags = None


@response(key=31, versions=(1, 3), flexible_from=2)
class DeleteAclsResponse:
    """The rules each filter removed."""

    throttle_time_ms: int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []
    unknown_tags: UnknownTags = None
