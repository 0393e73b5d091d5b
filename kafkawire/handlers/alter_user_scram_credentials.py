"""AlterUserScramCredentials: sets and deletes SCRAM credentials (KIP-554)."""

from __future__ import annotations

from itertools import chain

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kafkawire.security.acls.model import Operation
from kafkawire.security.principals import check_name
from kafkawire.security.sasl.credentials import CredentialChange, Credentials
from kafkawire.security.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, Hash, of_salted

Item = ScramCredentialDeletion | ScramCredentialUpsertion
Refusal = tuple[ErrorCode, str]


async def alter_user_scram_credentials(
    ctx: RequestContext, req: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """AlterUserScramCredentials v0.

    A user that is there twice is DUPLICATE_RESOURCE and stays as it was; the changes of all others
    are stored in one transaction (ScramControlManager). Clients send salted passwords, so nothing
    is derived here. New credentials count for new log-ins.

    Differs from Kafka: names that access rules or the log would confuse (`*`, control characters,
    more than 255 characters) are UNACCEPTABLE_CREDENTIAL, and so is an empty salted password, for
    which Kafka has UNKNOWN_SERVER_ERROR.
    """
    items: list[Item] = await ctx.list_in_slices(chain(req.deletions, req.upsertions))
    if not ctx.may_cluster(Operation.ALTER):
        no = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        distinct = await ctx.count_keys(each.name for each in items)
        names = await ctx.in_order(list(distinct))
        refused_all = (AlterUserScramCredentialsResult(name, no, no.sentence) for name in names)
        return AlterUserScramCredentialsResponse(results=await ctx.list_in_slices(refused_all))
    users = await ctx.broker.load_users()
    changes: dict[str, CredentialChange] = {}
    refusals: dict[str, Refusal] = {}
    for item in items:
        name = item.name
        if name in changes:
            text = "A user credential cannot be altered twice in the same request"
            refusals[name] = ErrorCode.DUPLICATE_RESOURCE, text
            del changes[name]
        elif name not in refusals:  # the first error counts
            if refused := _fault(item, users):
                refusals[name] = refused
            else:
                changes[name] = _change(item)
        await ctx.give_way()
    if changes:
        await users.alter(changes.values())
    for change in changes.values():
        what = "user deleted" if change.credential is None else "user changed"
        ctx.broker.security.audit.record_change(
            ctx.caller, what, user=change.user, mechanism=change.kind.name
        )
        await ctx.broker.env.slices.give_way()  # also for a client that is gone
    if changes:
        await ctx.broker.security.wait_until_enforced()
    results = []
    for name in (*changes, *refusals):
        code, why = refusals.get(name, (0, None))
        results.append(AlterUserScramCredentialsResult(name, int(code), why))
        await ctx.give_way()
    return AlterUserScramCredentialsResponse(results=results)


def _fault(item: Item, users: Credentials) -> Refusal | None:
    """Return why an item is refused, in the order of Kafka's checks."""
    if not item.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if item.mechanism not in (Hash.SHA256, Hash.SHA512):
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(item, ScramCredentialDeletion):
        if Hash(item.mechanism) in users.users.get(item.name, {}):
            return None
        text = "Attempt to delete a user credential that does not exist"
        return ErrorCode.RESOURCE_NOT_FOUND, text
    if item.iterations < MIN_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if item.iterations > MAX_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    if not item.salted_password:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password must not be empty"
    try:
        check_name(item.name)
    except ValueError as wrong:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, str(wrong)
    return None


def _change(item: Item) -> CredentialChange:
    kind = Hash(item.mechanism)
    if isinstance(item, ScramCredentialDeletion):
        return CredentialChange(item.name, kind, None)
    salted, salt = bytes(item.salted_password), bytes(item.salt)
    return CredentialChange(item.name, kind, of_salted(kind, salted, salt, item.iterations))
