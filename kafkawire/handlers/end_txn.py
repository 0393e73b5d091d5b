"""EndTxn v0-5: commit or abort the transaction of a producer.

v2 answers PRODUCER_FENCED; v3 is flexible; v4 may answer TRANSACTION_ABORTABLE; v5 raises the epoch
and answers the producer id and epoch of the next transaction (KIP-890). Answered when the outcome
is durable; the markers are written afterwards.

Hot, because it is half of the requests of a producer with small transactions: no task, and the
response is encoded when the coordinator answers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kafkawire.codec.compile import decoder, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.hot_rights import may
from kafkawire.messages.end_txn import EndTxnRequest, EndTxnResponse
from kafkawire.messages.registry import spec_of
from kafkawire.security.acls.model import Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.transactions.machine.request import Answer

KEY = 26
_SPEC = spec_of(KEY)


class EndTxn:
    """The handler: one for the broker's life, created by the first request."""

    def __init__(self, broker: Broker) -> None:
        # Brokers without transactions do not import this.
        from kafkawire.transactions.machine.wire import end_of, end_response

        self._end_of = end_of
        self._end_response = end_response
        self._broker = broker
        self._transactions = broker.transactions
        self._counts = broker.counts
        self._decoders = [
            decoder(EndTxnRequest, version) for version in range(_SPEC.max_version + 1)
        ]

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
        """Decide the outcome of the transaction now; answer when it is durable."""
        request, _ = self._decoders[version](buf, pos, end)
        exchange = Exchange(peer, version, correlation_id, _SPEC.flexible(version))
        peer.exchanges.append(exchange)
        requests = self._counts.requests
        requests[KEY] = requests.get(KEY, 0) + 1
        if peer.rights is not None and not self._may_write(peer, request.transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            exchange.answer(encode(EndTxnResponse(error_code=code), version))
            return True
        self._transactions.request_decision(
            self._end_of(request, version), partial(self._reply, exchange)
        )
        return True

    def _may_write(self, peer: Peer, transactional_id: str) -> bool:
        kind = ResourceKind.TRANSACTIONAL_ID
        return may(self._broker, peer, "EndTxn", Operation.WRITE, kind, transactional_id)

    def _reply(self, exchange: Exchange, answer: Answer) -> None:
        if not exchange.peer.closed:
            response = self._end_response(answer, exchange.version)
            exchange.answer(encode(response, exchange.version))

    def close(self) -> None:
        """Do nothing: the coordinators answer requests that wait for a commit."""
