"""How many requests the remote tier makes, how many bytes they carry, and on whose behalf.

`MeteredStore` stands between tiering and an ObjectStore and counts what passes. Who calls it for
certain topics says so around the call, `with charging({topic: weight, ...}):`; what is called
without is the cluster's (owner, manifest, scrub). Shares are whole millionths of a request that sum
up to what was made. A call that failed counts as one request: it may have been answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import nlargest

from kafkawire.codec.counts import Histogram
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.objectstore.port import Listed, Stored
from kafkawire.tiering.store.port import ObjectStore, Part

CLUSTER = "(cluster)"
OTHERS = "(others)"
MICRO = 1_000_000
MAX_TOPICS = 1_000
"""Topics counted each for itself: as many as the metrics page would show, 0.5 MB. All further ones
are counted together."""
MAX_SHARES = 256
"""Topics among which one request is divided, the largest ones; an object may hold ten thousand, and
dividing among these takes a tenth of a millisecond."""

OPERATIONS = ("upload", "put", "get", "read", "download", "copy_from", "head", "delete", "list")
"""The calls of an ObjectStore."""
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Bounds of the histograms: from a folder's answer to a part that was sent again and again."""

_UNASSIGNED: Mapping[str, int] = {}
_charged: ContextVar[Mapping[str, int]] = ContextVar("charged", default=_UNASSIGNED)


@contextmanager
def charging(weights: Mapping[str, int]) -> Iterator[None]:
    """Requests made inside, also by tasks begun inside, are made for these topics; `weights`, not
    negative, are mostly bytes."""
    token = _charged.set(weights)
    try:
        yield
    finally:
        _charged.reset(token)


@dataclass(slots=True)
class Usage:
    """Millionths of requests by kind, bytes into the bucket and out of it."""

    micro: Counter[str] = field(default_factory=Counter)
    in_bytes: int = 0
    out_bytes: int = 0

    def requests(self) -> dict[str, float]:
        """Requests by kind; a share of one is a fraction."""
        return {kind: micro / MICRO for kind, micro in self.micro.items()}

    def add(self, kind: str, micro: int, in_bytes: int, out_bytes: int) -> None:
        """Count in."""
        self.micro[kind] += micro
        self.in_bytes += in_bytes
        self.out_bytes += out_bytes


class Usages(dict[str, Usage]):
    """Usage by topic, of MAX_TOPICS of them; the others are OTHERS."""

    def of(self, topic: str) -> Usage:
        """Where a topic is counted."""
        found = self.get(topic)
        if found is None:
            if len(self) >= MAX_TOPICS:
                topic = OTHERS
            found = self.setdefault(topic, Usage())
        return found


def split(amount: int, weights: Sequence[int]) -> list[int]:
    """`amount` in whole parts proportional to the weights, which sum up to more than 0; the parts
    sum up to `amount`."""
    total = sum(weights)
    parts: list[int] = []
    given = weighed = 0
    for weight in weights:
        weighed += weight
        parts.append(amount * weighed // total - given)
        given += parts[-1]
    return parts


class Meter:
    """Counters since the start. Plain integers, for the metrics page and `tier cost`.

    `requests` by kind, `errors` by class of failure, bytes; `topics` the same by topic; `month`
    likewise, but the counter of months (kafkawire.tiering.cost.budget) puts another one in its
    place. `since_ms`: when counting began; `uploaded_ms`: when the last upload of a file succeeded,
    0: none has; `seconds`: how long calls of an operation took, failed ones too, with the wait for
    a free connection; `trouble` the last failure that was not an answer one may expect, with its
    time.
    """

    def __init__(
        self, now_ms: Callable[[], int] = lambda: 0, monotonic: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.now_ms = now_ms
        self.monotonic = monotonic
        self.seconds = {operation: Histogram(SECONDS) for operation in OPERATIONS}
        self.since_ms = now_ms()
        self.uploaded_ms = 0
        self.trouble: tuple[int, StoreError] | None = None
        self.requests: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.in_bytes = 0
        self.out_bytes = 0
        self.topics = Usages()
        self.month = Usages()

    def count(self, kind: str, requests: int, in_bytes: int = 0, out_bytes: int = 0) -> None:
        """Requests were made, for the topics that are charged now."""
        self.requests[kind] += requests
        self.in_bytes += in_bytes
        self.out_bytes += out_bytes
        names, weights = _shares(_charged.get())
        amounts = (requests * MICRO, in_bytes, out_bytes)
        parts = [split(amount, weights) for amount in amounts]
        for name, micro, into, out in zip(names, *parts, strict=True):
            self.topics.of(name).add(kind, micro, into, out)
            self.month.of(name).add(kind, micro, into, out)

    def begin_month(self, month: Usages) -> None:
        """Count into `month` from now on."""
        self.month = month

    def uploaded(self) -> None:
        """Note that the upload of a file has succeeded."""
        self.uploaded_ms = self.now_ms()

    def fail(self, kind: str, failure: StoreError) -> None:
        """A call failed."""
        self.count(kind, 1)
        self.errors[type(failure).__name__] += 1
        if not isinstance(failure, NoSuchObject | ConditionFailed):
            self.trouble = self.now_ms(), failure


def _shares(charged: Mapping[str, int]) -> tuple[list[str], list[int]]:
    total = sum(charged.values())
    if total <= 0:
        return [CLUSTER], [1]
    if len(charged) <= MAX_SHARES:
        return list(charged), list(charged.values())
    largest = nlargest(MAX_SHARES, charged.items(), key=lambda item: item[1])
    names = [name for name, _ in largest]
    weights = [weight for _, weight in largest]
    return [*names, OTHERS], [*weights, total - sum(weights)]


class MeteredStore:
    """An ObjectStore that counts; see there for what its calls do."""

    def __init__(self, store: ObjectStore, meter: Meter) -> None:
        self.inner = store
        self.meter = meter
        self.memory = store.memory

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        """PUT, several for a large file."""
        with self._timed("upload", "PUT"):
            stored = await self.inner.upload(key, path, bytes_per_second)
        self.meter.count("PUT", stored.requests, in_bytes=stored.size_bytes)
        self.meter.uploaded()
        return stored

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        """PUT."""
        with self._timed("put", "PUT"):
            stored = await self.inner.put(key, data, if_match=if_match, if_absent=if_absent)
        self.meter.count("PUT", stored.requests, in_bytes=len(data))
        return stored

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        """GET."""
        with self._timed("get", "GET"):
            data, etag = await self.inner.get(key, start, length)
        self.meter.count("GET", 1, out_bytes=len(data))
        return data, etag

    async def read(self, key: str, parts: Sequence[Part]) -> None:
        """GET."""
        with self._timed("read", "GET"):
            await self.inner.read(key, parts)
        self.meter.count("GET", 1, out_bytes=sum(part.length for part in parts))

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        """GET, several for a large object."""
        with self._timed("download", "GET"):
            stored = await self.inner.download(key, path, bytes_per_second)
        self.meter.count("GET", stored.requests, out_bytes=stored.size_bytes)
        return stored

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        """PUT, several for a large object. What the other tier asks for its GETs is not known."""
        with self._timed("copy_from", "PUT"):
            stored = await self.inner.copy_from(source_url, key, size_bytes, source_key)
        self.meter.count("PUT", stored.requests, in_bytes=stored.size_bytes)
        return stored

    async def head(self, key: str) -> Stored:
        """HEAD."""
        with self._timed("head", "HEAD"):
            stored = await self.inner.head(key)
        self.meter.count("HEAD", 1)
        return stored

    async def delete(self, keys: Sequence[str]) -> int:
        """DELETE."""
        with self._timed("delete", "DELETE"):
            requests = await self.inner.delete(keys)
        self.meter.count("DELETE", requests)
        return requests

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        """LIST."""
        with self._timed("list", "LIST"):
            listed = await self.inner.list(prefix, after, limit)
        self.meter.count("LIST", 1)
        return listed

    async def close(self) -> None:
        """End all calls in progress."""
        await self.inner.close()

    @contextmanager
    def _timed(self, operation: str, kind: str) -> Iterator[None]:
        began = self.meter.monotonic()
        try:
            yield
        except StoreError as failure:
            self.meter.fail(kind, failure)
            raise
        finally:
            self.meter.seconds[operation].add(self.meter.monotonic() - began)
