"""ListTransactions v0-2: the transactional ids that this broker coordinates (KIP-664).

v1 filters by duration (KIP-994), v2 by a pattern of the id (KIP-1152). While a partition of the
coordinator is loading the whole answer is COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.patterns import compile_pattern
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.transactions.machine.request import ListFilter
from kafkawire.transactions.machine.transaction import STATE_NAMES


async def list_transactions(
    ctx: RequestContext, req: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the ids that pass every filter, and the filters of states that do not exist."""
    response = ListTransactionsResponse()
    try:
        wanted = filter_of(req)
        found = await ctx.broker.transactions.find(wanted)
    except KafkaError as error:
        return ListTransactionsResponse(error_code=int(error.code))
    if ctx.rights is not None:
        kind = ResourceKind.TRANSACTIONAL_ID
        found = await ctx.list_in_slices(
            state
            for state in found
            if ctx.may(Operation.DESCRIBE, kind, state.transactional_id, logged=False)
        )
    response.transaction_states = found
    for name in req.state_filters:
        if name not in STATE_NAMES:
            response.unknown_state_filters.append(name)
        await ctx.give_way()
    return response


def filter_of(request: ListTransactionsRequest) -> ListFilter:
    """The filters of a ListTransactions; a null or empty pattern is none. Raises
    INVALID_REGULAR_EXPRESSION."""
    pattern = request.transactional_id_pattern
    matches = compile_pattern(pattern) if pattern else None
    return ListFilter(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
        matches,
    )
