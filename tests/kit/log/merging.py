"""Traffic against the merge plan, without a broker: the bytes written again, and the live
objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kafkawire.log.segments.merge.plan import MergeCandidate, limits_of, max_small, next_merge

GIB = 1 << 30
START_MS = 1_700_000_000_000


@dataclass
class Merging:
    """The segments of one class, cut every `every_ms` and scanned after `cuts_per_look` cuts.
    `cut_bytes` and `merged_bytes` were written; `live_per_gib` is the largest number of objects for
    each GiB, of a class with less than one GiB the number itself."""

    kind: str
    every_ms: int = 2000
    kept_ms: int = 0
    cuts_per_look: int = 5
    items: list[MergeCandidate] = field(default_factory=list)
    cut_bytes: int = 0
    merged_bytes: int = 0
    merges: int = 0
    live_per_gib: float = 0.0
    size_bytes: int = 0

    def run(self, sizes: Iterable[int]) -> Merging:
        """Cut segments of these sizes."""
        limits, now_ms = limits_of(self.kind), START_MS
        for at, size in enumerate(sizes):
            now_ms += self.every_ms
            self.items.append(MergeCandidate(at, size, now_ms))
            self.cut_bytes += size
            self.size_bytes += size
            if at % self.cuts_per_look:
                continue
            while found := next_merge(self.items, limits, max_small(self.size_bytes), now_ms):
                self._merge(found)
            self._scan(now_ms)
        return self

    def _merge(self, found: list[MergeCandidate]) -> None:
        ids = {item.id for item in found}
        small = [item for item in self.items if item.id in ids]
        assert small == found, "in the order in which they were cut"
        size = sum(item.size_bytes for item in found)
        merges = 1 + max(item.merges for item in found)
        made = MergeCandidate(found[-1].id, size, found[-1].made_ms, merges)
        self.items = [item for item in self.items if item.id not in ids]
        self.items.append(made)
        self.items.sort(key=lambda item: item.id)
        self.merged_bytes += size
        self.merges += 1

    def _scan(self, now_ms: int) -> None:
        if self.kept_ms:
            self.items = [item for item in self.items if item.made_ms > now_ms - self.kept_ms]
            self.size_bytes = sum(item.size_bytes for item in self.items)
        live = len(self.items) / max(1.0, self.size_bytes / GIB)
        self.live_per_gib = max(self.live_per_gib, live)

    @property
    def amplification(self) -> float:
        """The number of times a byte was written."""
        return 1 + self.merged_bytes / self.cut_bytes
