"""DeleteGroups (key 42): DeleteGroups"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=42, versions=(0, 3), flexible_from=2)
class DeleteGroupsRequest:
    """DeleteGroupsRequest"""

    groups_names: list[str] = []
    unknown_tags: UnknownTags = None


@struct
class DeletableGroupResult:
    """One entry of `results`."""

    group_id: str = ""
    error_code: int16 = 0
    error_message: Annotated[str | None, since(3)] = None
    unknown_tags: UnknownTags = None


@response(key=42, versions=(0, 3), flexible_from=2)
class DeleteGroupsResponse:
    """DeleteGroupsResponse"""

    throttle_time_ms: int32 = 0
    results: list[DeletableGroupResult] = []
    unknown_tags: UnknownTags = None
