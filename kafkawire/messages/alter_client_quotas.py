"""AlterClientQuotas (key 49): AlterClientQuotas"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class EntityData:
    """One entry of `entity`."""

    entity_type: str = ""
    entity_name: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class OpData:
    """One entry of `ops`."""

    key: str = ""
    value: float = 0.0
    remove: bool = False
    unknown_tags: UnknownTags = None


@struct
class EntryData:
    """One entry of `entries`."""

    entity: list[EntityData] = []
    ops: list[OpData] = []
    unknown_tags: UnknownTags = None


@request(key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasRequest:
    """AlterClientQuotasRequest"""

    entries: list[EntryData] = []
    validate_only: bool = False
    unknown_tags: UnknownTags = None


@struct
class ResponseEntryData:
    """One entry of `entries`."""

    error_code: int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = []
    unknown_tags: UnknownTags = None


@response(key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasResponse:
    """AlterClientQuotasResponse"""

    throttle_time_ms: int32 = 0
    entries: list[ResponseEntryData] = []
    unknown_tags: UnknownTags = None
