"""The APIs of group protocols that are not served: streams groups (KIP-1071)."""

from __future__ import annotations

from typing import Any, NoReturn

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext


async def unserved_groups(ctx: RequestContext, req: Any) -> NoReturn:
    """Always UNSUPPORTED_VERSION, before rights are checked, as in Kafka without this group
    protocol.

    ApiVersions lists the API because clients report that error at once, or use another API. Without
    it a client that uses the protocol waits forever for a broker that has it.
    Not done: the protocol.
    """
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
