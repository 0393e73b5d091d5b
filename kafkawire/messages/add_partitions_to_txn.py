"""AddPartitionsToTxn (key 24): partitions join a transaction."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class AddPartitionsToTxnTopic:
    name: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnTransaction:
    """One transaction (v4+)."""

    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []
    unknown_tags: UnknownTags = None


@request(key=24, versions=(0, 5), flexible_from=3)
class AddPartitionsToTxnRequest:
    """v3 is the last for clients; v4 is between brokers: many transactions, or only a check."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], since(4)] = []
    v3_and_below_transactional_id: Annotated[str, until(3)] = ""
    v3_and_below_producer_id: Annotated[int64, until(3)] = 0
    v3_and_below_producer_epoch: Annotated[int16, until(3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], until(3)] = []
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int32 = 0
    partition_error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnTopicResult:
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []
    unknown_tags: UnknownTags = None


@struct
class AddPartitionsToTxnResult:
    """Results of one transaction (v4+)."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []
    unknown_tags: UnknownTags = None


@response(key=24, versions=(0, 5), flexible_from=3)
class AddPartitionsToTxnResponse:
    """v2 may answer PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE; v4 answers by transaction."""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(4)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], since(4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], until(3)] = []
    unknown_tags: UnknownTags = None
