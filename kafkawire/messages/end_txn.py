"""EndTxn (key 26): a transaction commits or aborts."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=26, versions=(0, 5), flexible_from=3)
class EndTxnRequest:
    """v5: the epoch rises with every transaction (KIP-890)."""

    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    committed: bool = False
    unknown_tags: UnknownTags = None


@response(key=26, versions=(0, 5), flexible_from=3)
class EndTxnResponse:
    """v2 may answer PRODUCER_FENCED, v4 TRANSACTION_ABORTABLE; v5 adds the id and epoch to continue
    with.
    """

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: Annotated[int64, since(5)] = -1
    producer_epoch: Annotated[int16, since(5)] = -1
    unknown_tags: UnknownTags = None
