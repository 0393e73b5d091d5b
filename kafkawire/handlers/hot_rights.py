"""Rights in hot handlers, which have a connection but no RequestContext.

Produce and Fetch look up each topic in the `writes` or `reads` of their connection's rights, and
call `TopicRights` for those that are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.codec.flat import Topic
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.security.audit import Caller

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.handlers.exchange import Peer


def may(
    broker: Broker,
    peer: Peer,
    api: str,
    operation: Operation,
    resource_type: ResourceKind,
    name: str,
) -> bool:
    """Return whether the client of a connection may do something; see `RequestContext.may`."""
    if peer.rights is None or peer.rights.may(operation, resource_type, name):
        return True
    caller = Caller(str(peer.principal), peer.client_host, peer.listener)
    broker.counts.count_denial(operation.name.lower(), resource_type.name.lower())
    broker.security.audit.record_denial(caller, api, operation.name, resource_type.name, name)
    return False


class TopicRights:
    """The rights of the clients of one API to use topics, by name or id."""

    def __init__(self, broker: Broker, api: str, operation: Operation) -> None:
        """`operation`: READ or WRITE."""
        self._broker = broker
        self._api = api
        self._operation = operation

    def may(self, peer: Peer, topic: Topic) -> bool:
        """Return whether the client may use a topic, and remember it if so. An id that does not
        exist is no question of rights: it has an error of its own."""
        rights = peer.rights
        if rights is None:
            return True
        known = rights.reads if self._operation is Operation.READ else rights.writes
        if topic in known:
            return True
        if isinstance(topic, str):
            name = topic
        elif topic in (by_id := self._broker.catalog.by_id):
            name = by_id[topic].name
        else:
            return True
        if may(self._broker, peer, self._api, self._operation, ResourceKind.TOPIC, name):
            rights.remember(known, topic)
            return True
        return False

    def may_transact(self, peer: Peer, transactional_id: str | None) -> bool:
        """Return whether the client may write in a transaction; never without an id."""
        return peer.rights is None or (
            transactional_id is not None
            and may(
                self._broker, peer, self._api, Operation.WRITE, ResourceKind.TRANSACTIONAL_ID,
                transactional_id,
            )
        )  # fmt: skip
