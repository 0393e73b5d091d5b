"""Requests and bytes of this process by the place that was read, for `kafkawire find --explain`.

Places are values (compared, pickled, keys of caches) and have no state, so the counts are the
process's own, as in kafkawire.metric_counters: a caller takes the difference between two readings.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import NamedTuple


class ReadCost(NamedTuple):
    """Requests to one source, and the bytes of their answers; those for filter packs are a source
    of their own."""

    source: str
    requests: int
    size_bytes: int


_guard = Lock()
_requests: Counter[str] = Counter()
_bytes: Counter[str] = Counter()
"""By the URL of a place: a process reads a few, and each is one entry."""


def count(url: str, size_bytes: int) -> None:
    """Count one request and the bytes of its answer. Called by threads that read ahead."""
    with _guard:
        _requests[url] += 1
        _bytes[url] += size_bytes


def reading() -> dict[str, tuple[int, int]]:
    """Return requests and bytes by URL since the process began."""
    with _guard:
        return {url: (_requests[url], _bytes[url]) for url in _requests}


def since(before: dict[str, tuple[int, int]]) -> list[ReadCost]:
    """Return what was read after an earlier `reading`, by URL."""
    found = []
    for url, (requests, size) in sorted(reading().items()):
        known, known_bytes = before.get(url, (0, 0))
        if requests > known:
            found.append(ReadCost(url, requests - known, size - known_bytes))
    return found
