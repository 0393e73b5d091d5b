"""Traffic of kafkawire brokers since their start, and rates between two readings of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_BROKERS = 32
"""Brokers of a cluster that are asked every two seconds: one connection each."""


class BrokerTraffic(NamedTuple):
    """Sums over the brokers of a cluster: bytes sent to consumers, and the number of sampled
    Produce requests with times up to each of `bounds_s`, and above the last one."""

    sent_bytes: int
    bounds_s: tuple[float, ...]
    produces: tuple[int, ...]

    @staticmethod
    def of(answers: Sequence[Mapping[str, Any]]) -> BrokerTraffic | None:
        """Return the sums of answers to the command `traffic`; None of no broker, or of brokers
        whose versions have different bounds."""
        bounds = {tuple(each["bounds_s"]) for each in answers}
        if len(bounds) != 1:
            return None
        counts = zip(*(each["produces"] for each in answers), strict=True)
        sent = sum(each["sent_bytes"] for each in answers)
        return BrokerTraffic(sent, bounds.pop(), tuple(map(sum, counts)))

    def sent_since(self, before: BrokerTraffic, seconds: float) -> float | None:
        """Return the bytes sent per second; None if a broker has restarted."""
        sent = self.sent_bytes - before.sent_bytes
        return sent / seconds if sent >= 0 else None

    def p99_ms_since(self, before: BrokerTraffic) -> float | None:
        """Return the time that 99 % of the Produce requests since then took at most, interpolated
        between the bounds as Prometheus' histogram_quantile does; None without any."""
        if before.bounds_s != self.bounds_s:
            return None
        counts = [now - then for now, then in zip(self.produces, before.produces, strict=True)]
        total = sum(counts)
        if total <= 0 or min(counts) < 0:
            return None
        rank, low, below = 0.99 * total, 0.0, 0
        for bound, count in zip(self.bounds_s, counts, strict=False):
            if below + count >= rank:
                return 1000 * (low + (bound - low) * (rank - below) / count)
            low, below = bound, below + count
        return 1000 * low
