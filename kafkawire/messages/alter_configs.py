"""AlterConfigs (key 33): all settings of a resource replaced."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int32
from kafkawire.messages.incremental_alter_configs import AlterConfigsResourceResponse


@struct
class AlterableConfig:
    name: str = ""
    value: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class AlterConfigsResource:
    resource_type: int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []
    unknown_tags: UnknownTags = None


@request(key=33, versions=(0, 2), flexible_from=2)
class AlterConfigsRequest:
    """Resources with all their settings; a setting that is not named returns to its default."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False
    unknown_tags: UnknownTags = None


@response(key=33, versions=(0, 2), flexible_from=2)
class AlterConfigsResponse:
    """An error code per resource."""

    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
    unknown_tags: UnknownTags = None
