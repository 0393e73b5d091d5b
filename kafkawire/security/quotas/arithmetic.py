"""Measured rates and the delays that follow from them, as in Kafka (Rate, TokenBucket).

Pure; all times are milliseconds of a monotonic clock, passed by the caller.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_DELAY_MS = 2**31 - 1
"""The largest throttle_time_ms that a response can hold: 24 days."""


class SampleWindow(NamedTuple):
    """The settings quota.window.num and quota.window.size.seconds, the latter in milliseconds."""

    samples: int
    size_ms: int


class _Sample:
    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.total = 0.0


class Rate:
    """A rate per second over a sliding window of samples."""

    __slots__ = ("_at", "_samples", "_window")

    def __init__(self, window: SampleWindow) -> None:
        self._window = window
        self._samples: list[_Sample] = []
        self._at = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value; a negative one takes back what was recorded."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._at]
        if now_ms - sample.start_ms >= self._window.size_ms:
            sample = self._advance(now_ms)
        sample.total += value
        sample.last_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        samples = self._samples
        # One more than counted: the oldest may still overlap the window.
        self._at = (self._at + 1) % (self._window.samples + 1)
        if self._at == len(samples):
            samples.append(_Sample(now_ms))
        else:
            samples[self._at] = _Sample(now_ms)
        return samples[self._at]

    def measure(self, now_ms: int) -> tuple[float, int]:
        """Return the rate per second, and the length of the window it is of."""
        count, size_ms = self._window
        expires_ms = count * size_ms
        oldest_ms = now_ms
        total = 0.0
        for index, sample in enumerate(self._samples):
            if now_ms - sample.last_ms >= expires_ms:
                self._samples[index] = _Sample(now_ms)
            else:
                oldest_ms = min(oldest_ms, sample.start_ms)
                total += sample.total
        window_ms = now_ms - oldest_ms
        missing = count - 1 - window_ms // size_ms
        if missing > 0:  # a client that has just begun
            window_ms += missing * size_ms
        window_ms = max(window_ms, size_ms)
        return total / window_ms * 1000, window_ms

    def delay_ms(self, limit: float, now_ms: int) -> int:
        """Return how long the client must wait until the rate is down at the limit; 0: it is not
        above."""
        rate, window_ms = self.measure(now_ms)
        if rate <= limit:
            return 0
        return min(round((rate - limit) / limit * window_ms), MAX_DELAY_MS)


class TokenBucket:
    """A rate that allows a burst after a pause (KIP-599). It starts full and may be overdrawn."""

    __slots__ = ("_burst_s", "_tokens", "_updated_ms")

    def __init__(self, window: SampleWindow) -> None:
        self._burst_s = window.samples * window.size_ms / 1000
        self._tokens: float | None = None
        self._updated_ms = 0

    def tokens(self, limit: float, now_ms: int) -> float:
        """Return the tokens at this time; `limit`: how many are added per second."""
        burst = self._burst_s * limit
        if self._tokens is None:
            self._tokens = burst
        else:
            added = limit * (now_ms - self._updated_ms) / 1000
            self._tokens = min(burst, self._tokens + added)
        self._updated_ms = now_ms
        return self._tokens

    def take_tokens(self, count: float, limit: float, now_ms: int) -> None:
        """Take tokens, also more than there are."""
        self._tokens = self.tokens(limit, now_ms) - count

    def delay_ms(self, limit: float, now_ms: int) -> int:
        """Return how long it takes until no token is owed."""
        tokens = self.tokens(limit, now_ms)
        return min(round(-tokens / limit * 1000), MAX_DELAY_MS) if tokens < 0 else 0
