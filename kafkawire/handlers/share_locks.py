"""The records in flight of the share partitions that this broker leads. For the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.security.acls.model import Operation, ResourceKind

MAX_RUNS = 2_000
"""Runs of one answer, about 100 KB of JSON; `left_out` counts the others of a partition."""


async def list_locks(ctx: RequestContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share partitions of the group `group` from start to end offset, with runs of
    records: [first, last, state, member, deliveries, ms until its lock ends or it may be acquired].
    Those that no member has read from since their leader began are left out. ValueError,
    KafkaError."""
    group = arguments.get("group")
    if not isinstance(group, str):
        raise ValueError("group: it must be the name of a group")
    if not ctx.may(Operation.DESCRIBE, ResourceKind.GROUP, group):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    await ctx.broker.load_shares()
    found, room = [], MAX_RUNS
    for leader in ctx.broker.shares.list_leaders():
        await ctx.give_way()
        info = ctx.broker.catalog.by_id.get(leader.key.topic_id)
        if leader.key.group_id != group or leader.machine is None or info is None:
            continue
        if not ctx.may_topic(Operation.DESCRIBE, info.name, logged=False):
            continue
        runs, now_ms = leader.machine.runs(), leader.now_ms()
        found.append(
            {
                "topic": info.name,
                "partition": leader.key.partition,
                "start": leader.machine.start,
                "end": leader.machine.end,
                "runs": [
                    [run.first, run.last, run.value.state.name.lower(), run.value.member,
                     run.value.deliveries, max(0, run.value.until_ms - now_ms)]
                    for run in runs[:room]
                ],
                "left_out": max(0, len(runs) - room),
            }
        )  # fmt: skip
        room = max(0, room - len(runs))
    return {"partitions": found}
