"""DescribeClientQuotas (key 48): quotas that match a filter."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class ComponentData:
    """One condition: 0 equals, 1 the default, 2 any."""

    entity_type: str = ""
    match_type: int8 = 0
    match: str | None = ""
    unknown_tags: UnknownTags = None


@request(key=48, versions=(0, 1), flexible_from=1)
class DescribeClientQuotasRequest:
    """A filter over entities."""

    components: list[ComponentData] = []
    strict: bool = False
    unknown_tags: UnknownTags = None


@struct
class EntityData:
    """One part of a quota entity: user, client id or ip, None for the default."""

    entity_type: str = ""
    entity_name: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class ValueData:
    key: str = ""
    value: float = 0.0
    unknown_tags: UnknownTags = None


@struct
class EntryData:
    """One quota entity with its values or changes."""

    entity: list[EntityData] = []
    values: list[ValueData] = []
    unknown_tags: UnknownTags = None


@response(key=48, versions=(0, 1), flexible_from=1)
class DescribeClientQuotasResponse:
    """Entities with their quotas; None where the filter failed."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []
    unknown_tags: UnknownTags = None
