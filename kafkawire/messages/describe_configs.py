"""DescribeConfigs (key 32): settings of topics, brokers, groups and clients."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class DescribeConfigsResource:
    resource_type: int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []
    unknown_tags: UnknownTags = None


@request(key=32, versions=(1, 4), flexible_from=4)
class DescribeConfigsRequest:
    """Resources and settings (None: all). v1 may ask for synonyms, v3 for sentences."""

    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: Annotated[bool, since(3)] = False
    unknown_tags: UnknownTags = None


@struct
class DescribeConfigsSynonym:
    """One place the value could come from, in order of precedence."""

    name: str = ""
    value: str | None = ""
    source: int8 = 0
    unknown_tags: UnknownTags = None


@struct
class DescribeConfigsResourceResult:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int8 = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[int8, since(3)] = 0
    documentation: Annotated[str | None, since(3)] = ""
    unknown_tags: UnknownTags = None


@struct
class DescribeConfigsResult:
    error_code: int16 = 0
    error_message: str | None = ""
    resource_type: int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []
    unknown_tags: UnknownTags = None


@response(key=32, versions=(1, 4), flexible_from=4)
class DescribeConfigsResponse:
    """Values with where they come from. v1 adds source and synonyms; v3 type and sentence."""

    throttle_time_ms: int32 = 0
    results: list[DescribeConfigsResult] = []
    unknown_tags: UnknownTags = None
