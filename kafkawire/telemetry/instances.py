"""The requests of one client instance: which are accepted, which come too early. Pure.

Stages of an instance, and what a request leads to (Kafka: ClientMetricsInstance). A request is late
enough if the push interval has passed since the last accepted one.

| stage      | Get, late  | Get, early | push, late | push, early | last push, early |
|------------|------------|------------|------------|-------------|------------------|
| NEW        | SUBSCRIBED |            | PUSHED     |             |                  |
| SUBSCRIBED | SUBSCRIBED | refused    | PUSHED     | PUSHED      | PUSHED           |
| PUSHED     | SUBSCRIBED | refused    | PUSHED     | refused     | stays PUSHED     |

An early Get is answered, without any change of stage or time, after a push was refused with
UNKNOWN_SUBSCRIPTION_ID or UNSUPPORTED_COMPRESSION_TYPE: such a client asks again at once. After the
last push of a client that ends, the next push is refused. As in Kafka each push notes whether it is
the last one, also a refused one.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from kafkawire.codec.compression import NONE, OFFERED
from kafkawire.codec.errors import ErrorCode

_ASKS_AGAIN = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})


class Stage(Enum):
    """The last accepted request: none, a Get, or a push."""

    NEW = "new"
    SUBSCRIBED = "subscribed"
    PUSHED = "pushed"


class InstanceProgress(NamedTuple):
    """The state of an instance. `accepted_at`: of the last accepted request, in seconds of the
    monotonic clock; `terminating`: the last push was the client's last one; `error`: that of the
    last push, or of a Get after it."""

    stage: Stage = Stage.NEW
    accepted_at: float = -math.inf
    terminating: bool = False
    error: ErrorCode = ErrorCode.NONE


NEW = InstanceProgress()


class TelemetryPush(NamedTuple):
    """A PushTelemetry. `compression`: codec id of `metrics`."""

    instance_id: bytes
    subscription_id: int
    terminating: bool
    compression: int
    metrics: bytes


class Expected(NamedTuple):
    """Requirements of a push of one instance."""

    subscription_id: int
    interval_s: float
    max_bytes: int


def decide_get(
    progress: InstanceProgress, interval_s: float, now: float
) -> tuple[InstanceProgress, ErrorCode]:
    """Return the state after a GetTelemetrySubscriptions, and the error."""
    if now - progress.accepted_at >= interval_s:
        progress = progress._replace(stage=Stage.SUBSCRIBED, accepted_at=now)
    elif progress.error not in _ASKS_AGAIN:
        return progress, ErrorCode.THROTTLING_QUOTA_EXCEEDED
    return progress._replace(error=ErrorCode.NONE), ErrorCode.NONE


def decide_push(
    progress: InstanceProgress, push: TelemetryPush, expected: Expected, now: float
) -> tuple[InstanceProgress, ErrorCode]:
    """Return the state after a PushTelemetry with these fields, and the error, in Kafka's order."""
    error, after = _check_push(progress, push, expected, now)
    return after._replace(terminating=push.terminating, error=error), error


def _check_push(
    progress: InstanceProgress, push: TelemetryPush, expected: Expected, now: float
) -> tuple[ErrorCode, InstanceProgress]:
    if progress.terminating:
        return ErrorCode.INVALID_REQUEST, progress
    # A client waits for half to one and a half of the interval between its Get and its first push.
    on_time = now - progress.accepted_at >= expected.interval_s
    if progress.stage is Stage.SUBSCRIBED or on_time:
        progress = progress._replace(stage=Stage.PUSHED, accepted_at=now)
    elif not push.terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED, progress
    if push.subscription_id != expected.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID, progress
    if push.compression not in (NONE, *OFFERED):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, progress
    if len(push.metrics) > expected.max_bytes:
        return ErrorCode.TELEMETRY_TOO_LARGE, progress
    return ErrorCode.NONE, progress
