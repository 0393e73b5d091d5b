"""FindCoordinator (key 10): the coordinator of a group, a transaction or a share partition."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@request(key=10, versions=(0, 6), flexible_from=3)
class FindCoordinatorRequest:
    """Keys of groups (type 0), transactions (1) or share partitions (2, `group:topicId:partition`).

    v1 adds the type; v4 takes many keys; v6 adds type 2 (KIP-932).
    """

    key: Annotated[str, until(3)] = ""
    key_type: Annotated[int8, since(1)] = 0
    coordinator_keys: Annotated[list[str], since(4)] = []
    unknown_tags: UnknownTags = None


@struct
class Coordinator:
    key: str = ""
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@response(key=10, versions=(0, 6), flexible_from=3)
class FindCoordinatorResponse:
    """The coordinating broker of each key.

    v1 adds throttle time and error message; v4 answers for many keys; v5 may answer
    TRANSACTION_ABORTABLE.
    """

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: Annotated[int16, until(3)] = 0
    error_message: Annotated[str | None, since(1), until(3)] = ""
    node_id: Annotated[int32, until(3)] = 0
    host: Annotated[str, until(3)] = ""
    port: Annotated[int32, until(3)] = 0
    coordinators: Annotated[list[Coordinator], since(4)] = []
    unknown_tags: UnknownTags = None
