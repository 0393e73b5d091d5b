"""WriteTxnMarkers (key 27): a coordinator tells partitions how a transaction ended."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32, int64


@struct
class WritableTxnMarkerTopic:
    name: str = ""
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class WritableTxnMarker:
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: int32 = 0
    transaction_version: Annotated[int8, since(2), ignorable] = 0
    unknown_tags: UnknownTags = None


@request(key=27, versions=(1, 2), flexible_from=1)
class WriteTxnMarkersRequest:
    """Markers to write. v2 adds the version of the transaction protocol (KIP-1228)."""

    markers: list[WritableTxnMarker] = []
    unknown_tags: UnknownTags = None


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int32 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class WritableTxnMarkerTopicResult:
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []
    unknown_tags: UnknownTags = None


@struct
class WritableTxnMarkerResult:
    producer_id: int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []
    unknown_tags: UnknownTags = None


@response(key=27, versions=(1, 2), flexible_from=1)
class WriteTxnMarkersResponse:
    """An error code per producer, topic and partition."""

    markers: list[WritableTxnMarkerResult] = []
    unknown_tags: UnknownTags = None
