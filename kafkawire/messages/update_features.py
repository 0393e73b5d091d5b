"""UpdateFeatures (key 57): finalized feature levels change."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class FeatureUpdateKey:
    feature: str = ""
    max_version_level: int16 = 0
    allow_downgrade: Annotated[bool, until(0)] = False
    upgrade_type: Annotated[int8, since(1)] = 1
    unknown_tags: UnknownTags = None


@request(key=57, versions=(0, 2), flexible_from=0)
class UpdateFeaturesRequest:
    """v1 adds the kind of change and a dry run."""

    timeout_ms: int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[bool, since(1)] = False
    unknown_tags: UnknownTags = None


@struct
class UpdatableFeatureResult:
    """Result for one feature (to v1)."""

    feature: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@response(key=57, versions=(0, 2), flexible_from=0)
class UpdateFeaturesResponse:
    """v2 answers with a top-level error alone."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    results: Annotated[list[UpdatableFeatureResult], until(1)] = []
    unknown_tags: UnknownTags = None
