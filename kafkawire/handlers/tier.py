"""Tier: the commands of `kafkawire tier`, an API specific to kafkawire that ApiVersions does not
list."""

from __future__ import annotations

import json
from typing import Any

from kafkawire.broker.config_service import AlterConfigOp, Op, Resource, ResourceType
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.offset_map import read_map, sum_bytes
from kafkawire.handlers.share_locks import list_locks
from kafkawire.messages.tier import TierRequest, TierResponse
from kafkawire.metric_counters import Counts, Histogram
from kafkawire.security.acls.model import CLUSTER_NAME, Operation, ResourceKind

PRODUCE = 0

MAX_ARGUMENTS_BYTES = 64 << 10
"""Maximum size of the arguments; no valid command has as many."""
MAX_USE = 100
"""Quotas of an answer to `quotas`."""


async def tier(ctx: RequestContext, req: TierRequest) -> TierResponse:
    """Tier v0.

    The command's result as JSON. Pause and resume set `tier.paused` of this broker, which is stored
    like any other setting. `map`, `bytes`, `traffic`, `locks`, `quotas` and `changes` need no tier,
    which executes all others.
    INVALID_REQUEST with one sentence if the broker has no tier, or the command is invalid.
    """
    if req.command == "map":
        return await _map(ctx, req)
    ctx.check(Operation.ALTER, ResourceKind.CLUSTER, CLUSTER_NAME)
    commands = ctx.broker.tier_commands
    try:
        found = await _ask_broker(ctx, req)
    except ValueError as wrong:
        return _wrong(str(wrong))
    if found is not None:
        return TierResponse(body=json.dumps(found).encode())
    if commands is None:
        return _wrong("this broker has no remote tier: start it with kafkawire serve --tier URL")
    from kafkawire.tiering.admin.commands import (
        CommandError,  # not imported by brokers without a tier
    )

    try:
        arguments = _arguments(req.arguments)
        if req.command in ("pause", "resume"):
            answer = await _pause(ctx, req.command == "pause")
        else:
            answer = await commands.run(req.command, arguments)
        if req.command == "why":
            await _name_transactions(ctx, answer["pieces"])
    except (CommandError, ValueError) as wrong:
        return _wrong(str(wrong))
    return TierResponse(body=json.dumps(answer).encode())


def _traffic(counts: Counts) -> dict[str, Any]:
    """Return the bytes sent to consumers since the start, and the times of sampled Produces."""
    times = counts.latency.get(PRODUCE) or Histogram()
    found = {"bounds_s": list(times.bounds), "produces": times.counts}
    return {"sent_bytes": counts.fetched_bytes, **found}


async def _ask_broker(ctx: RequestContext, req: TierRequest) -> dict[str, Any] | None:
    """Return the answer to a command that needs no tier, None for others. ValueError."""
    if req.command == "bytes":
        return dict(await sum_bytes(ctx))
    if req.command == "traffic":
        return _traffic(ctx.broker.counts)
    if req.command == "locks":
        return await list_locks(ctx, _arguments(req.arguments))
    if req.command == "quotas":
        return {"use": _list_quota_use(ctx)}
    if req.command == "changes":
        return {"changes": ctx.broker.security.audit.list_changes()}
    return None


def _list_quota_use(ctx: RequestContext) -> list[dict[str, Any]]:
    """Return the quotas that were used in the last hour, those that are used most first."""
    found = [
        {**label._asdict(), "rate": rate, "limit": sensor.limit, "throttled": sensor.throttled,
         "throttled_ms": sensor.throttled_ms}
        for label, sensor, rate in ctx.broker.quotas.sensors.all()
    ]  # fmt: skip
    return sorted(found, key=lambda row: row["rate"] / (row["limit"] or 1), reverse=True)[:MAX_USE]


async def _map(ctx: RequestContext, req: TierRequest) -> TierResponse:
    """Return where the records of a topic are; for brokers without a tier, too."""
    try:
        found = await read_map(ctx, _arguments(req.arguments))
    except ValueError as wrong:
        return _wrong(str(wrong))
    return TierResponse(body=json.dumps(found).encode())


async def _name_transactions(ctx: RequestContext, pieces: list[dict[str, Any]]) -> None:
    """Add the transactional ids, as far as this broker coordinates them, to what waits for an open
    transaction."""
    wanted = {piece["producer_id"] for piece in pieces} - {None}
    known = await ctx.broker.transactions.ids_of(wanted) if wanted else {}
    for piece in pieces:
        name = known.get(piece["producer_id"])
        piece["transactional_id"] = name
        if name is not None:
            piece["detail"] += f", transactional id {name!r}"


def _wrong(sentence: str) -> TierResponse:
    return TierResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=sentence)


def _arguments(text: bytes) -> dict[str, Any]:
    """Parse the arguments of a command. Raises ValueError if they are malformed."""
    if len(text) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"the arguments have {len(text)} bytes, {MAX_ARGUMENTS_BYTES} are allowed")
    try:
        arguments = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the arguments of the command are not JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of the command must be a JSON object")
    return arguments


async def _pause(ctx: RequestContext, paused: bool) -> dict[str, Any]:
    """Set `tier.paused` of this broker."""
    broker = ctx.broker
    wish = AlterConfigOp("tier.paused", Op.SET, "true" if paused else "false")
    resource = Resource(ResourceType.BROKER, str(broker.node_id), [wish])
    (error,) = await broker.topics.configs.alter([resource], False, ctx.sender)
    if error is not None:
        raise KafkaError(error.code, error.message)
    return {"paused": broker.config.tier_paused}
