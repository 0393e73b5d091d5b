"""Checking what producers send to schedule topics, before it is appended.

A record that can never be delivered is refused. What changes later, such as a target that is
deleted, is for the deliverer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.codec.batches import Record, read_head
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.schedules.feed import parse_records, unpack_batch
from kafkawire.schedules.headers import Delivery, Invalid, instruction_of
from kafkawire.schedules.step import fault_of
from kafkawire.schedules.targets import ScheduleTargets

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

RECORD_ERRORS_MAX = 1000
"""Invalid records listed in a response, as for other topics."""


async def check_batch(
    env: Env,
    partition: Partition,
    batch: memoryview,
    targets: ScheduleTargets,
    may_write: Callable[[str], bool],
) -> None:
    """Check the records of a batch, which is valid otherwise. `may_write`: whether the producer may
    write to a topic. Raises KafkaError: INVALID_RECORD with the reasons, by record;
    TOPIC_AUTHORIZATION_FAILED if it may not write to a target."""
    errors: list[tuple[int, str]] = []
    count = 0
    head = read_head(batch)
    async for record in parse_records(env, await unpack_batch(env, batch, head)):
        reason = _fault(partition, record, targets, may_write)
        if reason is not None:
            count += 1
            if len(errors) < RECORD_ERRORS_MAX:
                errors.append((record.offset - head.base_offset, reason))
    if errors:
        index, reason = errors[0]
        text = f"{count} of the batch's records cannot be scheduled; record {index}: {reason}"
        raise KafkaError(ErrorCode.INVALID_RECORD, text, errors)


def _fault(
    partition: Partition,
    record: Record,
    targets: ScheduleTargets,
    may_write: Callable[[str], bool],
) -> str | None:
    """Return why a record cannot be scheduled, None if it can."""
    config = partition.config
    asked = instruction_of(
        record, compacted=config.cleanup_compact, target_header=config.schedule_header
    )
    if isinstance(asked, Invalid):
        return asked.reason
    if not isinstance(asked, Delivery):
        return None
    name = asked.target or config.schedule_topic
    # Now, because the delivery is the broker's: otherwise a schedule would evade the ACLs.
    if not may_write(name):
        text = f"the producer may not write to the target topic {name}"
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    try:
        target = targets.find_target(name)
    except KafkaError as error:
        return error.message
    return fault_of(record, target, f"{partition.topic}-{partition.index}")
