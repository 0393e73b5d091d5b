"""DescribeClientQuotas (key 48): DescribeClientQuotas"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class ComponentData:
    """One entry of `components`."""

    entity_type: str = ""
    match_type: int8 = 0
    match: str | None = ""
    unknown_tags: UnknownTags = None


@request(key=48, versions=(0, 1), flexible_from=1)
class DescribeClientQuotasRequest:
    """DescribeClientQuotasRequest"""

    components: list[ComponentData] = []
    strict: bool = False
    unknown_tags: UnknownTags = None


@struct
class EntityData:
    """One entry of `entity`."""

    entity_type: str = ""
    entity_name: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class ValueData:
    """One entry of `values`."""

    key: str = ""
    value: float = 0.0
    unknown_tags: UnknownTags = None


@struct
class EntryData:
    """One entry of `entries`."""

    entity: list[EntityData] = []
    values: list[ValueData] = []
    unknown_tags: UnknownTags = None


@response(key=48, versions=(0, 1), flexible_from=1)
class DescribeClientQuotasResponse:
    """DescribeClientQuotasResponse"""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []
    unknown_tags: UnknownTags = None
