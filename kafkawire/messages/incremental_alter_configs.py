"""IncrementalAlterConfigs (key 44): single settings set, deleted, extended or reduced."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class AlterableConfig:
    name: str = ""
    config_operation: int8 = 0
    value: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class AlterConfigsResource:
    resource_type: int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []
    unknown_tags: UnknownTags = None


@request(key=44, versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsRequest:
    """Operations: 0 set, 1 delete, 2 append, 3 subtract (KIP-339)."""

    resources: list[AlterConfigsResource] = []
    validate_only: bool = False
    unknown_tags: UnknownTags = None


@struct
class AlterConfigsResourceResponse:
    """Result for one resource."""

    error_code: int16 = 0
    error_message: str | None = ""
    resource_type: int8 = 0
    resource_name: str = ""
    unknown_tags: UnknownTags = None


@response(key=44, versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsResponse:
    """An error code per resource."""

    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
    unknown_tags: UnknownTags = None
