"""Counts the requests and bytes of the remote tier, by topic.

`MeteredStore` wraps an ObjectStore and counts its calls. A caller that acts for certain topics
declares it with `with charging({topic: weight, ...}):`; other calls are charged to the cluster
(owner, manifest, scrub).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import nlargest

from kafkawire.metric_counters import Histogram
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.objectstore.port import FileRange, Listed, Stored
from kafkawire.tiering.store.port import ObjectPart, ObjectStore

CLUSTER = "(cluster)"
LOG_OBJECTS = "(log objects)"
"""Requests of log objects (durability=s3), which topics share: `charging({LOG_OBJECTS: 1})`."""
OTHERS = "(others)"
MICRO = 1_000_000
MAX_TOPICS = 1_000
"""Maximum number of topics counted individually: as many as the metrics page shows, 0.5 MB. All
others are counted together."""
MAX_SHARES = 256
"""Maximum number of topics that share one request, the largest ones: an object may have ten
thousand, and dividing among these takes a tenth of a millisecond."""

OPERATIONS = (
    "upload", "put", "put_ranges", "get", "read", "download", "copy_from", "head", "delete", "list",
)  # fmt: skip
"""The methods of an ObjectStore."""
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Bucket bounds of the histograms: from a folder's response to a part that was retried many
times."""

_UNASSIGNED: Mapping[str, int] = {}
_charged: ContextVar[Mapping[str, int]] = ContextVar("charged", default=_UNASSIGNED)


@contextmanager
def charging(weights: Mapping[str, int]) -> Iterator[None]:
    """Charge requests in this context, including those of tasks started in it, to these topics;
    `weights` are not negative, usually bytes."""
    token = _charged.set(weights)
    try:
        yield
    finally:
        _charged.reset(token)


@dataclass(slots=True)
class Usage:
    """Millionths of requests by kind, bytes uploaded and downloaded."""

    micro: Counter[str] = field(default_factory=Counter)
    in_bytes: int = 0
    out_bytes: int = 0

    def requests(self) -> dict[str, float]:
        return {kind: micro / MICRO for kind, micro in self.micro.items()}

    def add(self, kind: str, micro: int, in_bytes: int, out_bytes: int) -> None:
        self.micro[kind] += micro
        self.in_bytes += in_bytes
        self.out_bytes += out_bytes


class Usages(dict[str, Usage]):
    """Usage by topic, of at most MAX_TOPICS; the rest is in OTHERS."""

    def usage_of_topic(self, topic: str) -> Usage:
        found = self.get(topic)
        if found is None:
            if len(self) >= MAX_TOPICS:
                topic = OTHERS
            found = self.setdefault(topic, Usage())
        return found


def split(amount: int, weights: Sequence[int]) -> list[int]:
    """Split `amount` into whole parts proportional to the weights, whose sum must be positive; the
    parts sum up to `amount`."""
    total = sum(weights)
    parts: list[int] = []
    given = weighed = 0
    for weight in weights:
        weighed += weight
        # From the running sum: rounding each part by itself would lose some of the amount.
        parts.append(amount * weighed // total - given)
        given += parts[-1]
    return parts


class Meter:
    """Counters since the start, for the metrics page and `tier cost`.

    `requests` by kind, `errors` by class of failure, bytes; `topics` the same by topic; `month` the
    same for this month, replaced by kafkawire.tiering.cost.budget. `since_ms`: when counting began;
    `uploaded_ms`: when the last upload of a file succeeded, 0 if none has; `seconds`: durations by
    operation, including failed calls and the wait for a free connection; `trouble`: the last
    unexpected failure with its time.
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
        self.requests[kind] += requests
        self.in_bytes += in_bytes
        self.out_bytes += out_bytes
        names, weights = _shares(_charged.get())
        amounts = (requests * MICRO, in_bytes, out_bytes)
        parts = [split(amount, weights) for amount in amounts]
        for name, micro, into, out in zip(names, *parts, strict=True):
            self.topics.usage_of_topic(name).add(kind, micro, into, out)
            self.month.usage_of_topic(name).add(kind, micro, into, out)

    def begin_month(self, month: Usages) -> None:
        self.month = month

    def note_upload(self) -> None:
        self.uploaded_ms = self.now_ms()

    def count_failure(self, kind: str, failure: StoreError) -> None:
        # The storage may have processed it, and then it is charged.
        self.count(kind, 1)
        self.errors[type(failure).__name__] += 1
        # Both are results that callers expect, not failures of the storage.
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
    """An ObjectStore that counts requests. See the port for its methods."""

    def __init__(self, store: ObjectStore, meter: Meter) -> None:
        self.inner = store
        self.meter = meter
        self.memory = store.memory

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        with self._time_operation("upload", "PUT"):
            stored = await self.inner.upload(key, path, bytes_per_second)
        self.meter.count("PUT", stored.requests, in_bytes=stored.size_bytes)
        self.meter.note_upload()
        return stored

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        with self._time_operation("put", "PUT"):
            stored = await self.inner.put(key, data, if_match=if_match, if_absent=if_absent)
        self.meter.count("PUT", stored.requests, in_bytes=len(data))
        return stored

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        with self._time_operation("put_ranges", "PUT"):
            stored = await self.inner.put_ranges(key, head, ranges)
        self.meter.count("PUT", stored.requests, in_bytes=stored.size_bytes)
        return stored

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        with self._time_operation("get", "GET"):
            data, etag = await self.inner.get(key, start, length)
        self.meter.count("GET", 1, out_bytes=len(data))
        return data, etag

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        with self._time_operation("read", "GET"):
            await self.inner.read(key, parts)
        self.meter.count("GET", 1, out_bytes=sum(part.length for part in parts))

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        with self._time_operation("download", "GET"):
            stored = await self.inner.download(key, path, bytes_per_second)
        self.meter.count("GET", stored.requests, out_bytes=stored.size_bytes)
        return stored

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        """PUT, several for a large object. The GETs charged by the other tier are not counted."""
        with self._time_operation("copy_from", "PUT"):
            stored = await self.inner.copy_from(source_url, key, size_bytes, source_key)
        self.meter.count("PUT", stored.requests, in_bytes=stored.size_bytes)
        return stored

    async def head(self, key: str) -> Stored:
        with self._time_operation("head", "HEAD"):
            stored = await self.inner.head(key)
        self.meter.count("HEAD", 1)
        return stored

    async def delete(self, keys: Sequence[str]) -> int:
        with self._time_operation("delete", "DELETE"):
            requests = await self.inner.delete(keys)
        self.meter.count("DELETE", requests)
        return requests

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        with self._time_operation("list", "LIST"):
            listed = await self.inner.list(prefix, after, limit)
        self.meter.count("LIST", 1)
        return listed

    async def close(self) -> None:
        await self.inner.close()

    @contextmanager
    def _time_operation(self, operation: str, kind: str) -> Iterator[None]:
        began = self.meter.monotonic()
        try:
            yield
        except StoreError as failure:
            self.meter.count_failure(kind, failure)
            raise
        finally:
            self.meter.seconds[operation].add(self.meter.monotonic() - began)
