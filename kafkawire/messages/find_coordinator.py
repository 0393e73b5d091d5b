"""FindCoordinator (key 10): FindCoordinator"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@request(key=10, versions=(0, 6), flexible_from=3)
class FindCoordinatorRequest:
    """FindCoordinatorRequest"""

    key: Annotated[str, until(3)] = ""
    key_type: Annotated[int8, since(1)] = 0
    coordinator_keys: Annotated[list[str], since(4)] = []
    unknown_tags: UnknownTags = None


@struct
class Coordinator:
    """One entry of `coordinators`."""

    key: str = ""
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@response(key=10, versions=(0, 6), flexible_from=3)
class FindCoordinatorResponse:
    """FindCoordinatorResponse"""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: Annotated[int16, until(3)] = 0
    error_message: Annotated[str | None, since(1), until(3)] = ""
    node_id: Annotated[int32, until(3)] = 0
    host: Annotated[str, until(3)] = ""
    port: Annotated[int32, until(3)] = 0
    coordinators: Annotated[list[Coordinator], since(4)] = []
    unknown_tags: UnknownTags = None
