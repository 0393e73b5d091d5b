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


async def tier(ctx: RequestContext, req: TierRequest) -> TierResponse:
    """Tier v0.

    The command's result as JSON. Pause and resume set `tier.paused` of this broker, which is stored
    like any other setting. `map`, `bytes`, `traffic` and `locks` need no tier, which executes all
    others.
    INVALID_REQUEST with one sentence if the broker has no tier, or the command is invalid.
    """
    if req.command == "map":
        return await _map(ctx, req)
    ctx.check(Operation.ALTER, ResourceKind.CLUSTER, CLUSTER_NAME)
    commands = ctx.broker.tier_commands
    if req.command == "bytes":
        return TierResponse(body=json.dumps(await sum_bytes(ctx)).encode())
    if req.command == "traffic":
        return TierResponse(body=json.dumps(_traffic(ctx.broker.counts)).encode())
    if req.command == "locks":
        try:
            locks = await list_locks(ctx, _arguments(req.arguments))
        except ValueError as wrong:
            return _wrong(str(wrong))
        return TierResponse(body=json.dumps(locks).encode())
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
