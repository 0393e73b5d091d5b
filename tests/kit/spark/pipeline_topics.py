"""A tier of real segments whose records suit each format of values, and jobs over it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafkawire.codec.batches import build
from kafkawire.reading.files.locations import Place
from tests.kit.spark.files import START_MS, Files, Share

DAY_MS = 86_400_000
BAD_EVERY = 50
"""Offsets whose value is not valid JSON."""
BATCH = 25


class Tier:
    """The topic `orders` of three partitions with JSON values; `grow` adds records to each."""

    def __init__(self, place: Place) -> None:
        self.files = Files(place)
        self.numbers = self.files.topic("orders", 3)
        self.ends = [0, 0, 0]
        self._segments = 0

    def grow(self, count: int, *, bad: bool = False) -> None:
        """Add `count` records to partition 0, half of that to 1, none to 2."""
        shares = []
        for partition, more in ((0, count), (1, count // 2)):
            base, end = self.ends[partition], self.ends[partition] + more
            batches = [
                _batch(start, min(start + BATCH, end), bad=bad) for start in range(base, end, BATCH)
            ]
            shares.append(Share(self.numbers[partition], batches))
            self.ends[partition] = end
        self._segments += 1
        self.files.put(self._segments, *shares)
        self.files.publish()

    def offsets(self) -> set[tuple[int, int]]:
        """Partition and offset of every record."""
        return {(p, offset) for p, end in enumerate(self.ends) for offset in range(end)}


def _batch(base: int, end: int, *, bad: bool) -> bytes:
    pairs = [(b"k%d" % (n % 5), value(n, bad=bad)) for n in range(base, end)]
    stamp = START_MS + base // 100 * DAY_MS // 2
    return bytes(build(pairs, base_offset=base, timestamp_ms=stamp))


def value(offset: int, *, bad: bool = False) -> bytes:
    """The JSON of an offset; in `bad` topics every fiftieth value is something else."""
    if bad and offset % BAD_EVERY == 7:
        return b'{"id": "no number"'
    return json.dumps({"id": offset, "name": f"n{offset % 10}"}).encode()


def job_text(tier: str, path: Path | str, **sections: Mapping[str, Any]) -> str:
    """The TOML of a job over `orders`."""
    plain: dict[str, dict[str, Any]] = {
        "job": {"name": "orders"},
        "source": {"url": tier, "subscribe": "orders"},
        "table": {"path": str(path)},
        "run": {"task_bytes": 1 << 16},
    }
    for name, given in sections.items():
        plain.setdefault(name, {}).update(given)
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{json.dumps(key)} = {json.dumps(v)}" for key, v in keys.items())
        for name, keys in plain.items()
    )
