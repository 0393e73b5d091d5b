"""InitProducerId (key 22): a producer gets its id and epoch."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=22, versions=(0, 6), flexible_from=2)
class InitProducerIdRequest:
    """v3 adds id and epoch to resume with (KIP-360); v6 two-phase commit (KIP-939)."""

    transactional_id: str | None = ""
    transaction_timeout_ms: int32 = 0
    producer_id: Annotated[int64, since(3)] = -1
    producer_epoch: Annotated[int16, since(3)] = -1
    enable2pc: Annotated[bool, since(6)] = False
    keep_prepared_txn: Annotated[bool, since(6)] = False
    unknown_tags: UnknownTags = None


@response(key=22, versions=(0, 6), flexible_from=2)
class InitProducerIdResponse:
    """v4 may answer PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE; v6 adds an ongoing transaction."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: int64 = -1
    producer_epoch: int16 = 0
    ongoing_txn_producer_id: Annotated[int64, since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[int16, since(6)] = -1
    unknown_tags: UnknownTags = None
