"""ListTransactions v0-2: the transactional ids that this broker coordinates (KIP-664).

v1 filters by duration (KIP-994), v2 by a pattern of the id (KIP-1152). While a partition of the
coordinator is loading the whole answer is COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Callable

import re2  # takes 20 ms: this module is imported in a thread, by the first request

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.transactions.machine.request import ListFilter
from kafkawire.transactions.machine.transaction import STATE_NAMES

PATTERN_BYTES = 1 << 20
"""Memory of a compiled pattern: at most 5 ms to compile."""


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
        found = await ctx.collect(
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


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a test of whether a whole transactional id matches. Raises INVALID_REGULAR_EXPRESSION
    for what is not of RE2's syntax, or too large."""
    # As Kafka's RE2J: `re` could be given a pattern that holds the event loop for hours. The time
    # here is linear in the length of the id, 15 ms for one of 32 KB and the worst pattern.
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        fullmatch = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        text = f"The pattern {pattern[:100]!r} is not valid: {reason[:200]}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from None
    return lambda text: fullmatch(text) is not None
