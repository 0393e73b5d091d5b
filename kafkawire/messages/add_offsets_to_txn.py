"""AddOffsetsToTxn (key 25): a group joins a transaction."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=25, versions=(0, 4), flexible_from=3)
class AddOffsetsToTxnRequest:
    """Announces that the transaction will commit offsets of a group."""

    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    group_id: str = ""
    unknown_tags: UnknownTags = None


@response(key=25, versions=(0, 4), flexible_from=3)
class AddOffsetsToTxnResponse:
    """v2 may answer PRODUCER_FENCED, v4 TRANSACTION_ABORTABLE."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None
