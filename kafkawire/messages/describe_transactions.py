"""DescribeTransactions (key 65): transactions by id."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=65, versions=(0, 0), flexible_from=0)
class DescribeTransactionsRequest:
    """Transactional ids."""

    transactional_ids: list[str] = []
    unknown_tags: UnknownTags = None


@struct
class TopicData:
    """Results of one topic."""

    topic: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class TransactionState:
    error_code: int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int32 = 0
    transaction_start_time_ms: int64 = 0
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    topics: list[TopicData] = []
    unknown_tags: UnknownTags = None


@response(key=65, versions=(0, 0), flexible_from=0)
class DescribeTransactionsResponse:
    """State and partitions of each transaction."""

    throttle_time_ms: int32 = 0
    transaction_states: list[TransactionState] = []
    unknown_tags: UnknownTags = None
