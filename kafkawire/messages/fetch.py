"""Fetch (key 1): consumers and followers read record batches."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, tag, until
from kafkawire.codec.types import ZERO_UUID, Records, UnknownTags, int8, int16, int32, int64, uuid
from kafkawire.messages.leaders import LeaderIdAndEpoch, NodeEndpoint


@struct
class ReplicaState:
    """Who the fetching replica is; a consumer is -1."""

    replica_id: int32 = -1
    replica_epoch: int64 = -1
    unknown_tags: UnknownTags = None


@struct
class FetchPartition:
    """One partition to read."""

    partition: int32 = 0
    current_leader_epoch: Annotated[int32, since(9), ignorable] = -1
    fetch_offset: int64 = 0
    last_fetched_epoch: Annotated[int32, since(12)] = -1
    log_start_offset: Annotated[int64, since(5), ignorable] = -1
    partition_max_bytes: int32 = 0
    replica_directory_id: Annotated[uuid, since(17), tag(0), ignorable] = ZERO_UUID
    high_watermark: Annotated[int64, since(18), tag(1), ignorable] = 9223372036854775807
    unknown_tags: UnknownTags = None


@struct
class FetchTopic:
    """One topic to read; an id in place of the name from v13 of Fetch."""

    topic: Annotated[str, until(12), ignorable] = ""
    topic_id: Annotated[uuid, since(13), ignorable] = ZERO_UUID
    partitions: list[FetchPartition] = []
    unknown_tags: UnknownTags = None


@struct
class ForgottenTopic:
    """Partitions that leave the session."""

    topic: Annotated[str, until(12), ignorable] = ""
    topic_id: Annotated[uuid, since(13), ignorable] = ZERO_UUID
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=1, versions=(4, 18), flexible_from=12)
class FetchRequest:
    """Partitions to read with their offsets, size limits, and the time to wait for data.

    Partitions are served in the order given. v5 adds the follower's log start; v7 sessions; v9 the
    leader epoch; v10 allows zstd; v11 the rack; v12 the epoch last fetched; v13 names topics by id;
    v15 moves the replica id into a tag; v17 adds the directory id, v18 the high watermark.
    """

    cluster_id: Annotated[str | None, since(12), tag(0), ignorable] = None
    replica_id: Annotated[int32, until(14)] = -1
    replica_state: Annotated[ReplicaState | None, since(15), tag(1)] = None
    max_wait_ms: int32 = 0
    min_bytes: int32 = 0
    max_bytes: int32 = 2147483647
    isolation_level: int8 = 0
    session_id: Annotated[int32, since(7), ignorable] = 0
    session_epoch: Annotated[int32, since(7), ignorable] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], since(7)] = []
    rack_id: Annotated[str, since(11), ignorable] = ""
    unknown_tags: UnknownTags = None


@struct
class EpochEndOffset:
    epoch: int32 = -1
    end_offset: int64 = -1
    unknown_tags: UnknownTags = None


@struct
class SnapshotId:
    """A snapshot by end offset and epoch (metadata log only)."""

    end_offset: int64 = -1
    epoch: int32 = -1
    unknown_tags: UnknownTags = None


@struct
class AbortedTransaction:
    """An aborted transaction with records in the response."""

    producer_id: int64 = 0
    first_offset: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class PartitionData:
    partition_index: int32 = 0
    error_code: int16 = 0
    high_watermark: int64 = 0
    last_stable_offset: int64 = -1
    log_start_offset: Annotated[int64, since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, since(12), tag(0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, since(12), tag(1)] = None
    snapshot_id: Annotated[SnapshotId | None, since(12), tag(2)] = None
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: Annotated[int32, since(11)] = -1
    records: Records | None = None
    unknown_tags: UnknownTags = None


@struct
class FetchableTopicResponse:
    """One topic of the answer."""

    topic: Annotated[str, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@response(key=1, versions=(4, 18), flexible_from=12)
class FetchResponse:
    """Stored batches of each partition, byte for byte.

    v5 adds the log start offset; v7 sessions and a top-level error; v11 the preferred replica; v12
    the epoch where logs diverge; v13 names topics by id; v16 adds endpoints of new leaders.
    """

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(7)] = 0
    session_id: Annotated[int32, since(7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], since(16), tag(0)] = []
    unknown_tags: UnknownTags = None
