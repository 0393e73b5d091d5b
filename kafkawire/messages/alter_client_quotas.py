"""AlterClientQuotas (key 49): quotas set or removed."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32
from kafkawire.messages.describe_client_quotas import EntityData


@struct
class OpData:
    """One quota to set or remove."""

    key: str = ""
    value: float = 0.0
    remove: bool = False
    unknown_tags: UnknownTags = None


@struct
class EntryData:
    """One quota entity with its values or changes."""

    entity: list[EntityData] = []
    ops: list[OpData] = []
    unknown_tags: UnknownTags = None


@request(key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasRequest:
    """Quotas to set or remove, by entity."""

    entries: list[EntryData] = []
    validate_only: bool = False
    unknown_tags: UnknownTags = None


@struct
class ResponseEntryData:
    """Result for one entity."""

    error_code: int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = []
    unknown_tags: UnknownTags = None


@response(key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasResponse:
    """An error code per entity."""

    throttle_time_ms: int32 = 0
    entries: list[ResponseEntryData] = []
    unknown_tags: UnknownTags = None
