"""Tier: the commands of `kafkawire tier`, an API of our own that ApiVersions does not name."""

from __future__ import annotations

import json
from typing import Any

from kafkawire.broker.config_service import AlterConfigOp, Op, Resource, ResourceType
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.tier import TierRequest, TierResponse

MAX_ARGUMENTS_BYTES = 64 << 10
"""Far more than any command has: what is larger is not worth parsing."""


async def tier(ctx: RequestContext, req: TierRequest) -> TierResponse:
    """Tier v0.

    The command's answer as JSON. Pause and resume are `tier.paused` of this broker, set and stored
    like any other setting; all else is the tier's. INVALID_REQUEST with one sentence where the
    broker has no tier, or the command is wrong.
    Not done: access control.
    """
    tiering = ctx.broker.tiering
    if tiering is None:
        return _wrong("this broker has no remote tier: start it with kafkawire serve --tier URL")
    from kafkawire.tiering.admin.commands import (
        CommandError,  # a broker without a tier needs none of it
    )

    try:
        arguments = _arguments(req.arguments)
        if req.command in ("pause", "resume"):
            answer = await _pause(ctx, req.command == "pause")
        else:
            answer = await tiering.commands.run(req.command, arguments)
    except (CommandError, ValueError) as wrong:
        return _wrong(str(wrong))
    return TierResponse(body=json.dumps(answer).encode())


def _wrong(sentence: str) -> TierResponse:
    return TierResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=sentence)


def _arguments(text: bytes) -> dict[str, Any]:
    """The arguments of a command; ValueError if they are none."""
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
    (error,) = await broker.topics.configs.alter([resource], False)
    if error is not None:
        raise KafkaError(error.code, error.message)
    return {"paused": broker.config.tier_paused}
