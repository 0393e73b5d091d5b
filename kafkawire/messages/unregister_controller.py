"""UnregisterController (key 94): a controller leaves the cluster."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=94, versions=(0, 0), flexible_from=0)
class UnregisterControllerRequest:
    """The controller's id."""

    controller_id: int32 = 0
    unknown_tags: UnknownTags = None


@response(key=94, versions=(0, 0), flexible_from=0)
class UnregisterControllerResponse:
    """Result of the removal."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None
