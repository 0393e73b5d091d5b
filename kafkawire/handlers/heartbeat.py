"""Heartbeat v0-4: extend a member's session, and report whether its group is rebalancing.

v1 throttle time; v3 static members; v4 flexible.
Not done: quotas.

Hot, because every group member sends one each three seconds: no task, no future, and a preencoded
response, unless changes of its partition wait for a commit.
"""

from __future__ import annotations

from asyncio import Future
from functools import partial
from typing import TYPE_CHECKING

from kafkawire.codec.compile import decoder, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import HEARTBEAT
from kafkawire.groups.service import Client
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.hot_rights import may
from kafkawire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kafkawire.messages.registry import spec_of
from kafkawire.security.acls.model import Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

_SPEC = spec_of(12)


class Heartbeat:
    """The handler: one for the broker's life."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.groups = broker.groups
        self.counts = broker.counts
        self.decoders = [
            decoder(HeartbeatRequest, version) for version in range(_SPEC.max_version + 1)
        ]
        self.answers: list[dict[int, bytes]] = [{} for _ in self.decoders]

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Answer immediately, or after the commit of earlier changes."""
        request, _ = self.decoders[version](buf, pos, end)
        exchange = Exchange(peer, version, correlation_id, _SPEC.flexible(version))
        peer.exchanges.append(exchange)
        self.counts.heartbeats += 1
        if peer.rights is not None and not self._may_read(peer, request.group_id):
            self._answer(exchange, int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
            return True
        code = self.groups.heartbeat_now(request)
        if code is not None:
            self._answer(exchange, code)
        else:
            # Only JoinGroup uses the sender.
            later = self.groups.handle_request(HEARTBEAT, Client(None, ""), version, request)
            later.add_done_callback(partial(self._answer_later, exchange))
        return True

    def _may_read(self, peer: Peer, group: str) -> bool:
        return may(self.broker, peer, "Heartbeat", Operation.READ, ResourceKind.GROUP, group)

    def _answer_later(self, exchange: Exchange, answer: Future[HeartbeatResponse]) -> None:
        if not exchange.peer.closed:
            self._answer(exchange, answer.result().error_code)

    def _answer(self, exchange: Exchange, code: int) -> None:
        answers = self.answers[exchange.version]
        body = answers.get(code)
        if body is None:
            response = HeartbeatResponse(error_code=int(code))
            body = answers[code] = encode(response, exchange.version)
        exchange.answer(body)

    def close(self) -> None:
        """Do nothing: the groups answer requests that wait for a commit."""
