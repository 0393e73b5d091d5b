"""DescribeSchedules (key 10002): what waits in schedule topics, and why. An API of our own, no
Kafka's."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=10002, versions=(0, 0), flexible_from=0)
class DescribeSchedulesRequest:
    """One schedule topic, or all of them (null). `include_details`: hours, and records that are not
    delivered."""

    topic: str | None = None
    include_details: bool = False
    unknown_tags: UnknownTags = None


@struct
class ScheduleHour:
    """The records that are due in an hour, which begins at `start_ms`."""

    start_ms: int64 = 0
    records: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class UndeliveredRecord:
    """A record that is due and not delivered. `held`: it is as soon as its target takes it; -1: its
    due time is unknown."""

    offset: int64 = 0
    due_ms: int64 = -1
    held: bool = False
    reason: str = ""
    unknown_tags: UnknownTags = None


@struct
class SchedulePartition:
    """One partition. Of `target_topic` and `target_header` one is empty. `next_due_ms`: -1 if no
    record waits; `late_ms`: of the last delivery; counts since the broker's start."""

    topic: str = ""
    partition: int32 = 0
    target_topic: str = ""
    target_header: str = ""
    compacted: bool = False
    followed: int64 = 0
    log_end: int64 = 0
    waiting: int64 = 0
    held: int32 = 0
    next_due_ms: int64 = -1
    late_ms: int64 = 0
    delivered: int64 = 0
    undeliverable: int64 = 0
    hours: list[ScheduleHour] = []
    undelivered: list[UndeliveredRecord] = []
    unknown_tags: UnknownTags = None


@response(key=10002, versions=(0, 0), flexible_from=0)
class DescribeSchedulesResponse:
    """The partitions that this broker leads, in order."""

    error_code: int16 = 0
    error_message: str | None = None
    partitions: list[SchedulePartition] = []
    unknown_tags: UnknownTags = None
