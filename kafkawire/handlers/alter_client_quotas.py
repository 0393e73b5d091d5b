"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    ResponseEntryData,
)
from kafkawire.messages.describe_client_quotas import EntityData
from kafkawire.security.acls.model import Operation
from kafkawire.security.quotas.alterations import Alteration

MAX_OPS = 100
"""Operations of an entry that are checked. There are five quotas: of more operations one is
refused, and the others with it."""


async def alter_client_quotas(
    ctx: RequestContext, req: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """AlterClientQuotas v0-1.

    v1 flexible. All valid entries are applied, in one transaction, and the answer has each entity
    once. Not done: addresses by name, which Kafka resolves.
    """
    if not ctx.may_cluster(Operation.ALTER_CONFIGS):
        return AlterClientQuotasResponse(
            entries=await ctx.list_in_slices(map(_refuse_entry, req.entries))
        )
    outcomes = await ctx.broker.quotas.alter(
        _alterations(req.entries),
        ctx.give_way,
        validate_only=req.validate_only,
        sender=ctx.sender,
    )
    response = AlterClientQuotasResponse()
    for entity, error in outcomes.items():
        response.entries.append(
            ResponseEntryData(
                error_code=0 if error is None else error.code,
                error_message=None if error is None else error.message,
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            )
        )
        if error is None and not req.validate_only:
            entity_text = ", ".join(f"{kind}={name or 'default'}" for kind, name in entity)
            ctx.broker.security.audit.record_change(ctx.caller, "quota changed", entity=entity_text)
        await ctx.broker.env.slices.give_way()  # also for a client that is gone
    if not req.validate_only:
        await ctx.broker.security.wait_until_enforced()
    return response


def _refuse_entry(entry: EntryData) -> ResponseEntryData:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    entity = [EntityData(part.entity_type, part.entity_name) for part in entry.entity[:MAX_OPS]]
    return ResponseEntryData(code, code.sentence, entity)


def _alterations(entries: list[EntryData]) -> Iterator[Alteration]:
    for entry in entries:
        names = {part.entity_type: part.entity_name for part in entry.entity[:MAX_OPS]}
        ops = [(op.key, None if op.remove else op.value) for op in entry.ops[:MAX_OPS]]
        yield Alteration(tuple(sorted(names.items())), ops)
