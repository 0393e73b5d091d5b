"""ReadShareGroupState (key 84): share state is read. Broker to broker."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid
from kafkawire.messages.read_share_group_state_summary import PartitionData
from kafkawire.messages.write_share_group_state import StateBatch


@struct
class ReadStateData:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=84, versions=(0, 0), flexible_from=0)
class ReadShareGroupStateRequest:
    """Share partitions with the reader's leader epoch."""

    group_id: str = ""
    topics: list[ReadStateData] = []
    unknown_tags: UnknownTags = None


@struct
class PartitionResult:
    partition: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    state_epoch: int32 = 0
    start_offset: int64 = 0
    state_batches: list[StateBatch] = []
    unknown_tags: UnknownTags = None


@struct
class ReadStateResult:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=84, versions=(0, 0), flexible_from=0)
class ReadShareGroupStateResponse:
    """Start offset and state batches per partition."""

    results: list[ReadStateResult] = []
    unknown_tags: UnknownTags = None
