"""A bucket in memory and its failures: the shared state of tests.kit.tier.fake_store."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkawire.objectstore.errors import NoSuchObject, Refused, SlowDown, StoreError
from tests.kit.env import EPOCH_MS


@dataclass
class StoreFaults:
    """Failures to inject. Rates are probabilities per request in [0, 1].

    `delay_s`: the minimum and maximum time that a request travels, in each direction. `lost_rate`:
    the request is done, but the response is lost; `partial_rate`: a body ends early. `down`: the
    store is unreachable, reported after `timeout_s`; `refused`: an S3 error code for every request.
    `bytes_per_second`: the speed of bodies; 0: at once.
    """

    delay_s: tuple[float, float] = (0.0, 0.0)
    error_rate: float = 0.0
    slow_down_rate: float = 0.0
    lost_rate: float = 0.0
    partial_rate: float = 0.0
    down: bool = False
    refused: str = ""
    timeout_s: float = 5.0
    bytes_per_second: float = 0.0


class Call(NamedTuple):
    """One request that was made. `code`: of its error, empty if it succeeded."""

    at_s: float
    kind: str
    key: str
    code: str


class Held(NamedTuple):
    """One stored object."""

    data: bytes
    etag: str
    modified_ms: int


Hook = Callable[[str, str, str], None]
"""Called with a moment, the kind of the request and its key. Moments: "call" (nothing was sent),
"done" (the bucket has changed or was read; the caller does not know), "answer"."""


def no_hook(moment: str, kind: str, key: str) -> None:
    """Ignore the event."""


@dataclass
class FakeBucket:
    """The shared state of a bucket. `requests`: counts by kind (put, get, head, delete, list);
    `calls`: the same one by one; `harmed`: keys that `forget` and `truncate` have damaged; `now_ms`
    dates objects."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    faults: StoreFaults = field(default_factory=StoreFaults)
    hook: Hook = no_hook
    now_ms: Callable[[], int] = lambda: EPOCH_MS
    part_bytes: int = 16 << 20
    held: dict[str, Held] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    calls: list[Call] = field(default_factory=list)
    harmed: set[str] = field(default_factory=set)

    @property
    def objects(self) -> dict[str, bytes]:
        """The stored objects by key."""
        return {key: held.data for key, held in sorted(self.held.items())}

    def store(self, key: str, data: bytes) -> str:
        """Put an object, without faults; return its ETag."""
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        self.held[key] = Held(bytes(data), etag, self.now_ms())
        return etag

    def data(self, key: str) -> bytes:
        """The bytes of an object, without faults. NoSuchObject."""
        if key not in self.held:
            raise NoSuchObject("NoSuchKey", f"there is no object {key}")
        return self.held[key].data

    def forget(self, key: str) -> None:
        """Lose an object without the broker's knowledge."""
        del self.held[key]
        self.harmed.add(key)

    def truncate(self, key: str, length: int) -> None:
        """Keep only the first bytes of an object."""
        self.store(key, self.held[key].data[:length])
        self.harmed.add(key)

    def draw(self) -> StoreError | None:
        """Choose the fault of a request before it is performed."""
        faults, chance = self.faults, self.rng.random()
        if faults.refused:
            return Refused(faults.refused, "the request was refused")
        if faults.down:
            return StoreError("EndpointConnectionError", "the endpoint cannot be reached")
        if chance < faults.error_rate:
            return StoreError("InternalError", "we encountered an internal error, try again")
        if chance < faults.error_rate + faults.slow_down_rate:
            return SlowDown("SlowDown", "reduce your request rate")
        return None
