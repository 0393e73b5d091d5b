"""Parse which rows of a table are replayed, and to which partitions. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kafkawire_spark.replay.record import ReplayError

SAME = "same"
_PAIR = re.compile(r"(\d{1,9}):(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound of the replayed rows: an offset of all partitions, of some, or a time. At most one
    is set."""

    offset: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
    time_ms: int = -1

    def of(self, partition: int, default: int) -> int:
        """Return the offset in a partition, or `default`."""
        return self.offsets.get(partition, default if self.offset is None else self.offset)


def parse_bound(option: str, text: str) -> Bound:
    """Parse `""`, an offset, `PARTITION:OFFSET,...`, or an ISO 8601 time (UTC without a zone)."""
    text = text.strip()
    if not text:
        return Bound()
    if re.fullmatch(r"\d{1,18}", text):
        return Bound(offset=int(text))
    pairs = [_PAIR.fullmatch(one.strip()) for one in text.split(",")]
    if all(pairs):
        return Bound(offsets=_unique(option, text, [(int(p[1]), int(p[2])) for p in pairs if p]))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ReplayError(
            f"{option}={text}: it must be an offset, PARTITION:OFFSET[,...] or a time such as "
            "2026-01-31T12:00:00Z"
        ) from None
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    ms = int(when.timestamp() * 1000)
    if ms < 0:
        raise ReplayError(f"{option}={text}: it must be a time since 1970")
    return Bound(time_ms=ms)


def parse_partitions(text: str) -> Mapping[int, int] | None:
    """Parse `same` (None), or `FROM:TO[,...]`: only these partitions of the table, to those of the
    target. Raises ReplayError, also if two partitions go to one, because their order would be
    undefined."""
    if text.strip().lower() == SAME:
        return None
    pairs = [_PAIR.fullmatch(one.strip()) for one in text.split(",")]
    if not all(pairs):
        raise ReplayError(
            f"--partition-map={text}: it must be {SAME} or FROM:TO[,FROM:TO...], numbers of "
            "partitions of the table and of the target"
        )
    chosen = _unique("--partition-map", text, [(int(p[1]), int(p[2])) for p in pairs if p])
    if len(set(chosen.values())) != len(chosen):
        raise ReplayError(
            f"--partition-map={text}: two partitions cannot go to one, which would have no order"
        )
    return chosen


def _unique(option: str, text: str, pairs: list[tuple[int, int]]) -> dict[int, int]:
    chosen = dict(pairs)
    if len(chosen) != len(pairs):
        raise ReplayError(f"{option}={text}: a partition is named twice")
    return chosen
