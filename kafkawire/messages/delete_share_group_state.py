"""DeleteShareGroupState (key 86): share state goes. Broker to broker."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int32, uuid
from kafkawire.messages.write_share_group_state import PartitionResult


@struct
class PartitionData:
    partition: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class DeleteStateData:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=86, versions=(0, 0), flexible_from=0)
class DeleteShareGroupStateRequest:
    """Share partitions."""

    group_id: str = ""
    topics: list[DeleteStateData] = []
    unknown_tags: UnknownTags = None


@struct
class DeleteStateResult:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=86, versions=(0, 0), flexible_from=0)
class DeleteShareGroupStateResponse:
    """An error code per partition."""

    results: list[DeleteStateResult] = []
    unknown_tags: UnknownTags = None
