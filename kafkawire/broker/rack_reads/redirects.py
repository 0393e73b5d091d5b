"""The partitions for which a client was sent to another broker, of one connection.

A client that asks again for the offset with which it was sent away got nothing at the other broker:
that has other rows, cannot reach the bucket, or cannot be reached by the client. Then the leader
serves the partition to this client for a while. Pure.
"""

from __future__ import annotations

STAY_S = 60.0
"""How long a client that came back stays: as long as librdkafka takes for too quick a change
between brokers."""
MAX_KNOWN = 10_000
"""Partitions of one connection, the last ones: a megabyte. Clients with more may be sent away once
too often."""

_STAYS = -1


class Redirects:
    """The answers that one connection got, by partition number."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # offset or _STAYS, the request's correlation ID, until when that counts
        self._known: dict[int, tuple[int, int, float]] = {}

    def allows(self, number: int, offset: int, correlation_id: int, now_s: float) -> bool:
        """Note that a client is to be sent away with a request for an offset; False: it came back
        and is to be served here. A request that is decided again gets the same answer."""
        known = self._known.pop(number, None)
        if known is not None:
            at, sent_by, until_s = known
            # Later it has waited there for records, until its metadata became too old.
            is_back = at == offset and sent_by != correlation_id and now_s < until_s
            if is_back:
                known = _STAYS, correlation_id, now_s + STAY_S
            if is_back or (at == _STAYS and now_s < until_s):
                self._known[number] = known
                return False
        self._known[number] = offset, correlation_id, now_s + STAY_S
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return True
