"""DeleteGroups (key 42): empty groups go."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=42, versions=(0, 3), flexible_from=2)
class DeleteGroupsRequest:
    """Group ids."""

    groups_names: list[str] = []
    unknown_tags: UnknownTags = None


@struct
class DeletableGroupResult:
    group_id: str = ""
    error_code: int16 = 0
    error_message: Annotated[str | None, since(3)] = None
    unknown_tags: UnknownTags = None


@response(key=42, versions=(0, 3), flexible_from=2)
class DeleteGroupsResponse:
    """An error code per group. v3 adds an error message."""

    throttle_time_ms: int32 = 0
    results: list[DeletableGroupResult] = []
    unknown_tags: UnknownTags = None
