"""CreateTopics (key 19): new topics."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct, tag
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, uuid


@struct
class CreatableReplicaAssignment:
    """The brokers of one partition, chosen by hand."""

    partition_index: int32 = 0
    broker_ids: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class CreatableTopicConfig:
    name: str = ""
    value: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class CreatableTopic:
    name: str = ""
    num_partitions: int32 = 0
    replication_factor: int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []
    unknown_tags: UnknownTags = None


@request(key=19, versions=(2, 7), flexible_from=5)
class CreateTopicsRequest:
    """v4 takes -1 for the broker's defaults; v5 wants settings back."""

    topics: list[CreatableTopic] = []
    timeout_ms: int32 = 60000
    validate_only: bool = False
    unknown_tags: UnknownTags = None


@struct
class CreatableTopicConfigs:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int8 = -1
    is_sensitive: bool = False
    unknown_tags: UnknownTags = None


@struct
class CreatableTopicResult:
    name: str = ""
    topic_id: Annotated[uuid, since(7)] = ZERO_UUID
    error_code: int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Annotated[int16, since(5), tag(0)] = 0
    num_partitions: Annotated[int32, since(5)] = -1
    replication_factor: Annotated[int16, since(5)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, since(5)] = []
    unknown_tags: UnknownTags = None


@response(key=19, versions=(2, 7), flexible_from=5)
class CreateTopicsResponse:
    """v5 adds partitions, replication factor and settings; v6 may be throttled; v7 adds the topic
    id.
    """

    throttle_time_ms: int32 = 0
    topics: list[CreatableTopicResult] = []
    unknown_tags: UnknownTags = None
