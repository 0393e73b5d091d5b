"""AddPartitionsToTxn (key 24): AddPartitionsToTxn"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class AddPartitionsToTxnTopic:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnTransaction:
    """One entry of `transactions`."""

    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []
    unknown_tags: UnknownTags = None


@request(key=24, versions=(0, 5), flexible_from=3)
class AddPartitionsToTxnRequest:
    """AddPartitionsToTxnRequest"""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], since(4)] = []
    v3_and_below_transactional_id: Annotated[str, until(3)] = ""
    v3_and_below_producer_id: Annotated[int64, until(3)] = 0
    v3_and_below_producer_epoch: Annotated[int16, until(3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], until(3)] = []
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnPartitionResult:
    """One entry of `results_by_partition`."""

    partition_index: int32 = 0
    partition_error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnTopicResult:
    """One entry of `topic_results`."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnResult:
    """One entry of `results_by_transaction`."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []
    unknown_tags: UnknownTags = None


@response(key=24, versions=(0, 5), flexible_from=3)
class AddPartitionsToTxnResponse:
    """AddPartitionsToTxnResponse"""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(4)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], since(4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], until(3)] = []
    unknown_tags: UnknownTags = None
