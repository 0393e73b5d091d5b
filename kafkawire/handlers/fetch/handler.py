"""Fetch v4-18: plan, gather views of the stored batches, or park until there are enough.

v5 log start in request and response; v7 sessions (KIP-227); v9 leader epochs (KIP-320); v11 racks
(KIP-392); v12 is flexible and detects a diverged log (KIP-595); v13 names topics by id; v16 has
leader hints (KIP-951).

A parked Fetch is woken by its partitions' high watermarks and by a deadline, whichever is first,
without polling. Long runs of batches are sent from the files of journals and segments. Short ones
are views of the mapped journals if they are recent; older ones are read in the log's thread pool,
so a cold consumer never blocks the event loop. Reads from the remote tier wait
up to `remote.fetch.max.wait.ms`, for all partitions concurrently; a partition whose data has not
arrived is answered empty, and the next Fetch finds it.

Memory for data that is read or copied is reserved before (`broker.answer_memory`) and released when
the response was sent; what is sent from files needs none. While others hold it a Fetch is answered
with less, or waits. A connection has one Fetch at a time, as in Kafka: pipelined ones start one
after another.

Of clients with many partitions the list is kept (kafkawire.handlers.fetch.sessions). Clients with a
rack read from another broker what is in the remote tier, or in the copy of a follower
(kafkawire.broker.rack_reads).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkawire.codec.fetch import FLEXIBLE_FROM, MAX_ITEMS, read_request
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.fetch.context import FetchContext
from kafkawire.handlers.fetch.request import FULL, Attempt

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

_DECODED: Final = object()
"""In place of the next step of a request that is decoded."""


class Fetch:
    """The handler: one for the broker's life."""

    def __init__(self, broker: Broker) -> None:
        self.context = FetchContext(broker)

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
        """Answer immediately, start a cold read, or park. False: another Fetch of the connection is
        unanswered."""
        if peer.fetching:
            return False
        context = self.context
        exchange = Exchange(peer, version, correlation_id, version >= FLEXIBLE_FROM)
        context.counts.fetches += 1
        attempt = Attempt(context, exchange)
        decoding = read_request(attempt.ask, buf, pos, end, version)
        many = next(decoding, _DECODED) is not _DECODED
        if not many and attempt.ask.session_epoch not in FULL:
            many = context.sessions.count_due(attempt.ask) > MAX_ITEMS
        peer.exchanges.append(exchange)
        peer.fetching = True
        if many:
            attempt.begin_many(decoding, block)
            return True
        if attempt.prepare():
            if attempt.session is not None:
                for _ in attempt.session.update(attempt.ask):
                    pass
            elif peer.rights is not None:
                for _ in attempt.check_rights(peer.rights):
                    pass
            later = (
                attempt.answer_or_park_later
                if context.quotas.of_requests
                else attempt.answer_or_park
            )
            context.budget.do(attempt.answer_or_park, later)
        return True

    def close(self) -> None:
        """Answer parked requests with the available data, because the broker is stopping."""
        self.context.budget.finish()
        for waiting in list(self.context.parked):
            waiting.expire()
        for waiting in list(self.context.starved):
            waiting.give_up()
