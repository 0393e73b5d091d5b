"""InitializeShareGroupState (key 83): share state begins. Broker to broker."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int32, int64, uuid
from kafkawire.messages.write_share_group_state import PartitionResult


@struct
class PartitionData:
    partition: int32 = 0
    state_epoch: int32 = 0
    start_offset: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class InitializeStateData:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=83, versions=(0, 0), flexible_from=0)
class InitializeShareGroupStateRequest:
    """The first offset of each share partition."""

    group_id: str = ""
    topics: list[InitializeStateData] = []
    unknown_tags: UnknownTags = None


@struct
class InitializeStateResult:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=83, versions=(0, 0), flexible_from=0)
class InitializeShareGroupStateResponse:
    """An error code per partition."""

    results: list[InitializeStateResult] = []
    unknown_tags: UnknownTags = None
