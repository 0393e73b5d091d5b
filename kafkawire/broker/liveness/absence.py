"""Decides when this broker's machine starts a broker whose own machine seems to be gone. Pure.

A broker that is gone is started by the machine of the next living broker by node id, first in the
ring after it; the second one waits for one lease more, the third for two, because the first may
have no supervisor that does it. Only one of them can succeed: SQL takes a start only with the epoch
of the broker that was seen here (kafkawire.metadata, `register_broker`), so nothing rests on these
times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Absent:
    """A silent broker: its epoch, and from when on its absence counts."""

    epoch: int
    since_s: float


class AbsenceWatcher:
    """Remembers since when brokers are silent, as seen by broker `node_id`."""

    def __init__(self, node_id: int, lease_s: float) -> None:
        self._node_id = node_id
        self._lease_s = lease_s
        self._absent: dict[int, _Absent] = {}

    def observe(
        self,
        now_s: float,
        epochs: Mapping[int, int],
        silent: Collection[int],
        ended: Collection[int],
    ) -> list[int]:
        """Return the silent brokers that this broker's machine is to start now.

        `epochs`: of all registered brokers; `silent`: without those that are being started;
        `ended`: the silent ones that deleted their heartbeat. These get a lease more, since a
        broker that was stopped is usually started again.
        """
        for node in self._absent.keys() - set(silent):
            del self._absent[node]
        due = []
        for node in sorted(set(silent) & epochs.keys()):
            known = self._absent.get(node)
            if known is None or known.epoch != epochs[node]:
                since_s = now_s + (self._lease_s if node in ended else 0.0)
                known = self._absent[node] = _Absent(epochs[node], since_s)
            rank = _rank(node, self._node_id, epochs.keys() - set(silent))
            if now_s - known.since_s >= rank * self._lease_s:
                due.append(node)
        return due


def _rank(absent: int, me: int, alive: Iterable[int]) -> int:
    """Return how many living brokers are before `me` in the ring that begins after `absent`."""
    ring = sorted({*alive, me}, key=lambda node: (node < absent, node))
    return ring.index(me)
