"""DeleteTopics (key 20): topics go, by name or id."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, nullable, request, response, since, struct, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@struct
class DeleteTopicState:
    name: str | None = None
    topic_id: uuid = ZERO_UUID
    unknown_tags: UnknownTags = None


@request(key=20, versions=(1, 6), flexible_from=4)
class DeleteTopicsRequest:
    """Names; from v6 names or ids."""

    topics: Annotated[list[DeleteTopicState], since(6)] = []
    topic_names: Annotated[list[str], until(5), ignorable] = []
    timeout_ms: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class DeletableTopicResult:
    name: Annotated[str | None, nullable(6)] = ""
    topic_id: Annotated[uuid, since(6)] = ZERO_UUID
    error_code: int16 = 0
    error_message: Annotated[str | None, since(5)] = None
    unknown_tags: UnknownTags = None


@response(key=20, versions=(1, 6), flexible_from=4)
class DeleteTopicsResponse:
    """v1 adds the throttle time; v5 an error message; v6 the topic id."""

    throttle_time_ms: int32 = 0
    responses: list[DeletableTopicResult] = []
    unknown_tags: UnknownTags = None
