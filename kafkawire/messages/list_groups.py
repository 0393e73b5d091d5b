"""ListGroups (key 16): the groups a broker coordinates."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=16, versions=(0, 5), flexible_from=3)
class ListGroupsRequest:
    """v4 filters by state, v5 by type."""

    states_filter: Annotated[list[str], since(4)] = []
    types_filter: Annotated[list[str], since(5)] = []
    unknown_tags: UnknownTags = None


@struct
class ListedGroup:
    group_id: str = ""
    protocol_type: str = ""
    group_state: Annotated[str, since(4)] = ""
    group_type: Annotated[str, since(5)] = ""
    unknown_tags: UnknownTags = None


@response(key=16, versions=(0, 5), flexible_from=3)
class ListGroupsResponse:
    """v1 adds the throttle time; v4 the state of each group; v5 its type."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16 = 0
    groups: list[ListedGroup] = []
    unknown_tags: UnknownTags = None
