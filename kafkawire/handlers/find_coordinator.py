"""FindCoordinator v0-6: which broker coordinates a group, a transactional id or a share partition.

v1 key type and error message; v3 flexible; v4 many keys; v5 TRANSACTION_ABORTABLE may be
returned (it is not); v6 share partitions, with keys GROUP:TOPIC ID:PARTITION (KIP-932).

librdkafka ignores the address in this response: it connects to the address that the last Metadata
response had for the node id. When another machine takes a broker over, a client whose last Metadata
response is older would connect to the old address for up to topic.metadata.refresh.interval.ms,
five minutes, and time out meanwhile. The loss of a connection makes it request metadata at once, so
a connection that is older than the address of the coordinator is closed. And it may keep the old
address for as long as responses name the same node id, also with new metadata: so the first
response of each newer connection is COORDINATOR_NOT_AVAILABLE, which makes it forget the
coordinator. Not more: it asks again on other connections before it connects.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_parse
from kafkawire.handlers.context import UNAUTHORIZED, ReconnectNeeded, RequestContext
from kafkawire.handlers.nodes import Nodes
from kafkawire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkawire.security.acls.model import CLUSTER_NAME, Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.coordination.service import CoordinatorService

logger = logging.getLogger(__name__)

GROUP = 0
TRANSACTION = 1
SHARE = 2
SHARE_FROM = 6
MANY_KEYS_FROM = 4
STALE_S = 600.0
"""Connections are closed, and responses withheld, for so long after a change: twice librdkafka's
default of topic.metadata.refresh.interval.ms, after which all clients have the new address."""

NO_SUCH_TYPE = "Coordinators of this type are not served by this broker."
NO_SHARE_KEY = "The key of a share partition must be GROUP:TOPIC ID:PARTITION."
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


async def find_coordinator(
    ctx: RequestContext, req: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of each key, or an error for each."""
    nodes, withheld = Nodes(ctx), _withheld(ctx)
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


def _withheld(ctx: RequestContext) -> dict[int, float]:
    """Return the brokers whose addresses have changed not long ago, each with the time, and which
    this connection has not asked for since: this response does not name them, the next one does."""
    since = ctx.broker.env.clock.monotonic() - STALE_S
    changes = ctx.broker.catalog.address_changes
    return {n: at for n, at in changes.items() if at > since and ctx.withheld.get(n) != at}


def _may_be_named(ctx: RequestContext, node_id: int, withheld: Mapping[int, float]) -> bool:
    """Return whether this response names a coordinator. Raises ReconnectNeeded if its addresses
    changed after the connection was opened."""
    if node_id not in withheld:
        return True
    if withheld[node_id] > ctx.connected_at:
        logger.info(
            "the connection of %s is closed so that it requests metadata: the addresses of broker "
            "%d, its coordinator, changed after it was opened", ctx.sender, node_id,
        )  # fmt: skip
        raise ReconnectNeeded
    ctx.withheld[node_id] = withheld[node_id]
    return False


async def _find(
    ctx: RequestContext, nodes: Nodes, withheld: Mapping[int, float], key_type: int, key: str
) -> Coordinator:
    broker = ctx.broker
    types = (GROUP, TRANSACTION, SHARE) if broker.config.share_version else (GROUP, TRANSACTION)
    if key_type not in types or (key_type == SHARE and ctx.version < SHARE_FROM):
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, NO_SUCH_TYPE)
    code = _find_refusal(ctx, key_type, key)
    if code is not ErrorCode.NONE:
        return _no_coordinator(key, code, code.sentence)
    service: CoordinatorService[Any]
    if key_type == TRANSACTION:
        service = await broker.load_transactions()
    elif key_type == GROUP:
        service = await broker.load_groups()
    elif not _is_share_key(key):
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, NO_SHARE_KEY)
    else:
        service = await broker.load_share_states()
    try:
        partition = await service.coordinator_of(key)
    except KafkaError as error:
        logger.warning(
            "cannot create topic %s, clients retry FindCoordinator: %s", service.topic, error
        )
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    node = nodes.by_id.get(partition.leader)
    if node is None or not _may_be_named(ctx, node.node_id, withheld):
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    return Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_message=None
    )


def _find_refusal(ctx: RequestContext, key_type: int, key: str) -> ErrorCode:
    if key_type == SHARE:
        kind, operation, name = ResourceKind.CLUSTER, Operation.CLUSTER_ACTION, CLUSTER_NAME
    else:
        kind = ResourceKind.GROUP if key_type == GROUP else ResourceKind.TRANSACTIONAL_ID
        operation, name = Operation.DESCRIBE, key
    return ErrorCode.NONE if ctx.may(operation, kind, name) else UNAUTHORIZED[kind]


def _is_share_key(key: str) -> bool:
    """Return whether a key is GROUP:TOPIC ID:PARTITION; a group may have colons (KAFKA-20183)."""
    group_id, topic_id, partition = ("", "", *key.rsplit(":", 2))[-3:]
    try:
        uuid_parse(topic_id)
    except ValueError:
        return False
    return bool(group_id.strip()) and _NUMBER.fullmatch(partition) is not None


def _no_coordinator(key: str, code: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=int(code), error_message=message
    )
