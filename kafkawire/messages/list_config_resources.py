"""ListConfigResources (key 74): the resources that have settings."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@request(key=74, versions=(0, 1), flexible_from=0)
class ListConfigResourcesRequest:
    """v0 means client metrics alone; v1 names kinds of resource, none meaning all (KIP-1142)."""

    resource_types: Annotated[list[int8], since(1)] = []
    unknown_tags: UnknownTags = None


@struct
class ConfigResource:
    resource_name: str = ""
    resource_type: Annotated[int8, since(1)] = 16
    unknown_tags: UnknownTags = None


@response(key=74, versions=(0, 1), flexible_from=0)
class ListConfigResourcesResponse:
    """Names. v1 adds the kind of each."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    config_resources: list[ConfigResource] = []
    unknown_tags: UnknownTags = None
