"""Leader hints (KIP-951): the leader of a partition in the error response of another broker.

A client that sent a Produce or Fetch to the wrong broker gets the id and epoch of the leader with
the error, and its address, so that it need not send Metadata first. There is no hint where it
would not help: the leader is unknown, not alive or without an address on the client's listener, or
this broker itself does not serve what it leads; the client then asks for Metadata. There is none
either for a topic that the client may not describe: some errors come before it is authorized.

Kafka: KafkaApis.handleProduceRequest and handleFetchRequest. Called by kafkawire.handlers.produce
and kafkawire.handlers.fetch, for responses with errors only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.flat import Tags, Topic
from kafkawire.codec.varint import put_uvarint
from kafkawire.handlers.nodes import Node, node_on
from kafkawire.messages.flat_produce import LEADERS_FROM, ProduceResult
from kafkawire.messages.leaders import NodeEndpoint
from kafkawire.security.acls.model import Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.handlers.exchange import Peer

FETCH_FROM: Final = 16
"""The first version of Fetch with hints: earlier ones have the leader without its address."""

_PRODUCE_TAG: Final = 0
_FETCH_TAG: Final = 1
_ENDPOINTS_TAG: Final = 0

_LEADER: Final = Struct(">BBBiiB")  # one field, its tag and size; id, epoch, no tags
_LEADER_BYTES: Final = 9
_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_INT: Final = Struct(">i")


class HintedLeader(NamedTuple):
    """The leader of a partition at an address for the client, and its epoch."""

    node: Node
    epoch: int


def leader_of_partition(
    broker: Broker, listener: str, place: tuple[Topic, int], *, itself: bool = False
) -> HintedLeader | None:
    """Return the leader of a partition, by its topic's name or id and its index; None where it
    would not help the client. `itself`: this broker would."""
    catalog = broker.catalog
    topic, index = place
    if isinstance(topic, str):
        found = catalog.by_name.partition_of(topic, index)
    else:
        found = catalog.by_id.partition_of(topic, index)
    if found is None or found.leader in catalog.silent:
        return None
    if found.leader == broker.node_id and not itself:
        return None
    info = catalog.brokers.get(found.leader)
    node = None if info is None else node_on(broker, info, listener)
    return None if node is None else HintedLeader(node, found.leader_epoch)


class HintedLeaders:
    """The leaders that one response names, and where they listen."""

    def __init__(self, broker: Broker, peer: Peer, tag: int, *, known: bool) -> None:
        """`tag`: that of a partition's leader. `known`: the client knows hints; otherwise it is
        given none."""
        self._broker = broker
        self._peer = peer
        self._known = known
        self._nodes: dict[int, Node] = {}
        self._encoded: dict[tuple[Topic, int], bytes] = {}
        self._tag = tag

    def leader(self, topic: Topic, index: int, code: int) -> tuple[int, int] | None:
        """Return (node id, leader epoch) of the leader to send to after the error `code` for a
        partition. Its address is then one of `endpoints`."""
        if code not in _HINTED or not self._known:
            return None
        broker = self._broker
        led = leader_of_partition(
            broker, self._peer.listener, (topic, index),
            itself=code != ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )  # fmt: skip
        if led is None or not self._may_describe(topic):
            return None
        self._nodes[led.node.node_id] = led.node
        return led.node.node_id, led.epoch

    def _may_describe(self, topic: Topic) -> bool:
        rights = self._peer.rights
        if rights is None:
            return True
        name = topic if isinstance(topic, str) else self._broker.catalog.by_id[topic].name
        return rights.may(Operation.DESCRIBE, ResourceKind.TOPIC, name)

    def endpoints(self) -> list[NodeEndpoint]:
        """Return the addresses of the leaders that were found."""
        return [NodeEndpoint(*node) for node in self._nodes.values()]

    def add(self, topic: Topic, index: int, code: int) -> None:
        """Add the leader of a partition with an error, if the response names it."""
        found = self.leader(topic, index, code)
        if found is not None:
            self._encoded[topic, index] = encoded_leader(*found, self._tag)

    def tags(self) -> Tags | None:
        """Return the tagged fields of the response; None: it has none."""
        if not self._encoded:
            return None
        return self._encoded, encoded_endpoints(self.endpoints())


class LeaderHints:
    """Makes the hints of the responses of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def of_produce(self, peer: Peer, version: int, results: Iterable[ProduceResult]) -> Tags | None:
        """Return the hints of a response to Produce; None: it has none."""
        leaders = self.of_long_produce(peer, version)
        for result in results:
            leaders.add(result[0], result[1], result[2])
        return leaders.tags()

    def of_long_produce(self, peer: Peer, version: int) -> HintedLeaders:
        """Return the hints of a response to Produce that is encoded by its declaration."""
        return HintedLeaders(self._broker, peer, _PRODUCE_TAG, known=version >= LEADERS_FROM)

    def of_fetch(self, peer: Peer, version: int) -> HintedLeaders:
        """Return the hints of a response to Fetch, to which its errors are added."""
        return HintedLeaders(self._broker, peer, _FETCH_TAG, known=version >= FETCH_FROM)


def encoded_leader(node_id: int, epoch: int, tag: int) -> bytes:
    """Return the tagged fields of a partition, which are a leader alone."""
    return _LEADER.pack(1, tag, _LEADER_BYTES, node_id, epoch, 0)


def encoded_endpoints(nodes: Sequence[NodeEndpoint]) -> bytes:
    """Return the tagged fields of a response, which are the addresses alone."""
    field = bytearray()
    put_uvarint(field, len(nodes) + 1)
    for node in nodes:
        field += _INT.pack(node.node_id)
        _put_text(field, node.host)
        field += _INT.pack(node.port)
        _put_text(field, node.rack)
        field.append(0)  # no tags
    section = bytearray((1, _ENDPOINTS_TAG))
    put_uvarint(section, len(field))
    return bytes(section + field)


def _put_text(out: bytearray, text: str | None) -> None:
    raw = b"" if text is None else text.encode()
    put_uvarint(out, 0 if text is None else len(raw) + 1)
    out += raw
