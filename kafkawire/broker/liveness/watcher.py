"""Decides which brokers are silent, from the heartbeats that they store in SQL.

Each broker raises a number in a row of its own (kafkawire.metadata.heartbeats). A broker is silent
if its row was not seen to change for the lease, by this broker's own monotonic clock, while this
broker's own reads of it succeeded; or at once if its row is gone, which a clean end deletes. Clocks
of two machines are never compared: any other number is a sign of life, also a lower one, which a
database that lost its last transactions shows.

A broker that is being started stores negative numbers (kafkawire.broker.liveness.starting). They do
not say that it serves, so it becomes silent after the lease, or stays so; but it is not gone.

Reads that failed or came late say nothing about others, because all brokers may have been cut off
or stopped together: after them the lease begins again. A read that is a little late, as on a
machine without idle cores, may be as late for others: of the time between two reads the lease
counts only what is usual, so there it lasts longer by this broker's own delays. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

TOLERANCE_S = 0.25
"""By which two reads are usually further apart than their interval: a read takes milliseconds, and
a clock may be slow."""


class _Row(NamedTuple):
    """A row as it was last seen to change. `heartbeats` None: there is none; `since_s`: when it
    changed, `served_s`: when it changed to a positive number, or when the lease began again, both
    in time that counts."""

    heartbeats: int | None
    since_s: float
    served_s: float


class HeartbeatWatcher:
    """`silent`: brokers that are registered and not alive; `starting`: those that are being
    started, silent or not yet; `beating`: those whose row was seen to change and that are not
    silent. None contains this broker, `node_id`."""

    def __init__(self, node_id: int, lease_s: float, max_gap_s: float, interval_s: float) -> None:
        """`max_gap_s`: between two reads; after a longer one the lease begins again; `interval_s`:
        between two reads on a machine that has time for them."""
        self._node_id = node_id
        self._lease_s = lease_s
        self._max_gap_s = max_gap_s
        self._usual_gap_s = interval_s + TOLERANCE_S
        self._counted_s = 0.0
        self._rows: dict[int, _Row] = {}
        self._read_s: float | None = None
        self.starting: frozenset[int] = frozenset()
        self.silent: frozenset[int] = frozenset()
        self.beating: frozenset[int] = frozenset()

    def note_read_failure(self) -> None:
        self._read_s = None

    def running(self, nodes: Collection[int]) -> None:
        """Note that brokers are known to run: their leases begin again."""
        others = frozenset(nodes) - {self._node_id}
        self.silent -= others
        self.starting -= others
        self.beating |= others
        for node in others & self._rows.keys():
            now_s = self._counted_s
            self._rows[node] = self._rows[node]._replace(since_s=now_s, served_s=now_s)

    def observe(
        self, now_s: float, heartbeats: Mapping[int, int], registered: Collection[int]
    ) -> None:
        """Apply a successful read: the heartbeats by node id, and the brokers that there are."""
        gap_s = 0.0 if self._read_s is None else now_s - self._read_s
        steady = self._read_s is not None and gap_s <= self._max_gap_s
        self._read_s = now_s
        now_s = self._counted_s = self._counted_s + min(gap_s, self._usual_gap_s)
        others = set(registered) - {self._node_id}
        silent, beating = set(self.silent & others), set(self.beating & others)
        rows: dict[int, _Row] = {}
        for node in others:
            found, before = heartbeats.get(node), self._rows.get(node)
            serves = found is not None and found > 0
            if before is None:
                row = _Row(found, now_s, now_s)
            elif found != before.heartbeats:
                row = _Row(found, now_s, now_s if serves or not steady else before.served_s)
                if serves:
                    silent.discard(node)
                    beating.add(node)
                elif found is None:
                    silent.add(node)
            else:
                row = before if steady else _Row(found, now_s, now_s)
            if now_s - row.served_s >= self._lease_s:
                silent.add(node)
            rows[node] = row
        self._rows = rows
        self.starting = frozenset(
            node
            for node, row in rows.items()
            if (row.heartbeats or 0) < 0 and now_s - row.since_s < self._lease_s
        )
        self.silent = frozenset(silent)
        self.beating = frozenset(beating - silent)
