"""ListTransactions (key 66): the transactions a broker coordinates."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=66, versions=(0, 2), flexible_from=0)
class ListTransactionsRequest:
    """Filters. v1 adds how long it runs at least; v2 a pattern for the id (KIP-1152)."""

    state_filters: list[str] = []
    producer_id_filters: list[int64] = []
    duration_filter: Annotated[int64, since(1)] = -1
    transactional_id_pattern: Annotated[str | None, since(2)] = None
    unknown_tags: UnknownTags = None


@struct
class TransactionState:
    transactional_id: str = ""
    producer_id: int64 = 0
    transaction_state: str = ""
    unknown_tags: UnknownTags = None


@response(key=66, versions=(0, 2), flexible_from=0)
class ListTransactionsResponse:
    """Transactions, and state filters the broker does not know."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []
    unknown_tags: UnknownTags = None
