"""A bucket in memory and what goes wrong with it: the world's side of tests.kit.tier.fake_store."""

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
    """What goes wrong, as data. Rates are chances of one request in [0, 1].

    `delay_s`: the least and the most a request travels, there and back again each.
    `lost_rate`: it is done, but the answer does not come; `partial_rate`: a body ends early.
    `down`: nothing can be reached, after `timeout_s`; `refused`: a code of S3's, for every request.
    `bytes_per_second`: how fast bodies travel; 0: at once.
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
    """One request that was made. `code`: of its error, empty if it was answered well."""

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
    """Nobody looks."""


@dataclass
class FakeBucket:
    """The world's side. `requests`: by kind (put, get, head, delete, list); `calls`: the same one
    by one; `harmed`: keys that `forget` and `truncate` have met; `now_ms` dates objects."""

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
        """What is there, by key."""
        return {key: held.data for key, held in sorted(self.held.items())}

    def store(self, key: str, data: bytes) -> str:
        """Put an object, whatever the faults; its ETag."""
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        self.held[key] = Held(bytes(data), etag, self.now_ms())
        return etag

    def data(self, key: str) -> bytes:
        """The bytes of an object, whatever the faults. NoSuchObject."""
        if key not in self.held:
            raise NoSuchObject("NoSuchKey", f"there is no object {key}")
        return self.held[key].data

    def forget(self, key: str) -> None:
        """Lose an object behind everybody's back."""
        del self.held[key]
        self.harmed.add(key)

    def truncate(self, key: str, length: int) -> None:
        """Keep the first bytes of an object only."""
        self.store(key, self.held[key].data[:length])
        self.harmed.add(key)

    def draw(self) -> StoreError | None:
        """What befalls a request on its way there, before anything was done."""
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
