"""FindCoordinator v0-6: which broker coordinates a group or a transactional id.

v1 key type and error message; v3 flexible; v4 many keys; v5 TRANSACTION_ABORTABLE may be
returned (it is not); v6 share groups.

librdkafka keeps the address of a coordinator while responses have the same node id, so it would
never reach a broker that was taken over by another machine. COORDINATOR_NOT_AVAILABLE makes it
forget the coordinator: each connection gets that once after the addresses of a broker have changed.
Not done: share groups (key type 2: INVALID_REQUEST, as a Kafka without them answers).
"""

from __future__ import annotations

import logging

from kafkawire.broker.new_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import UNAUTHORIZED, RequestContext
from kafkawire.handlers.nodes import Nodes
from kafkawire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkawire.security.acls.model import Operation, ResourceKind

logger = logging.getLogger(__name__)

GROUP = 0
TRANSACTION = 1
MANY_KEYS_FROM = 4
WITHHELD_S = 600.0
"""After a change of addresses; clients that kept the old ones for longer failed meanwhile."""

NO_SUCH_TYPE = "Coordinators of this type are not served by this broker."


async def find_coordinator(
    ctx: RequestContext, req: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of each key, or an error for each."""
    nodes = Nodes(ctx)
    withheld = _withhold(ctx)
    if ctx.version >= MANY_KEYS_FROM:
        response = FindCoordinatorResponse()
        for key in dict.fromkeys(req.coordinator_keys):  # clients search for keys in the answer
            response.coordinators.append(await _find(ctx, nodes, withheld, req.key_type, key))
            await ctx.give_way()
        return response
    one = await _find(ctx, nodes, withheld, req.key_type, req.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _withhold(ctx: RequestContext) -> set[int]:
    """Return the brokers whose addresses changed and that this connection has not asked for since:
    this response does not name them, the next one does."""
    changes = ctx.broker.catalog.address_changes
    since = ctx.broker.env.clock.monotonic() - WITHHELD_S
    return {node for node, at in changes.items() if at > since and ctx.withheld.get(node) != at}


async def _find(
    ctx: RequestContext, nodes: Nodes, withheld: set[int], key_type: int, key: str
) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, NO_SUCH_TYPE)
    kind = ResourceKind.GROUP if key_type == GROUP else ResourceKind.TRANSACTIONAL_ID
    if not ctx.may(Operation.DESCRIBE, kind, key):
        return _no_coordinator(key, UNAUTHORIZED[kind], UNAUTHORIZED[kind].sentence)
    broker = ctx.broker
    load = broker.load_transactions if key_type == TRANSACTION else broker.load_groups
    service = await load()
    try:
        partition = await service.coordinator_of(key)
    except KafkaError as error:
        topic = TRANSACTION_STATE_TOPIC if key_type == TRANSACTION else GROUP_METADATA_TOPIC
        logger.warning("cannot create topic %s, clients retry FindCoordinator: %s", topic, error)
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    node = nodes.by_id.get(partition.leader)
    if node is not None and node.node_id in withheld:
        ctx.withheld[node.node_id] = broker.catalog.address_changes.get(node.node_id, 0.0)
        node = None
    if node is None:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    return Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_message=None
    )


def _no_coordinator(key: str, code: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=int(code), error_message=message
    )
