"""How long a segment's file is kept once the segment is in the remote tier. Pure.

Kafka's local.retention.ms and local.retention.bytes apply to each partition; a file that several
share is kept as long as one of them needs it. Sizes are those of local segments and journals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from kafkawire.codec.configs.settings import TierLevel, TopicConfig
from kafkawire.offsets.catalog.port import NEVER, SegmentRange

ConfigOf = Callable[[int], TopicConfig | None]
"""Returns the settings of a partition led by this broker; None if it was deleted or belongs to
another broker."""


class LocalBytes:
    """The local size of a partition, counted from its end. `mappings` are in offset order."""

    __slots__ = ("_after", "_ends")

    def __init__(
        self, mappings: Sequence[SegmentRange], is_local: Callable[[int], bool], journals: int
    ) -> None:
        here = [row.length if is_local(row.segment_id) else 0 for row in reversed(mappings)]
        self._ends = [row.end_offset for row in mappings]
        self._after = list(accumulate(here, initial=journals))[-2::-1]

    def after(self, end_offset: int) -> int:
        """Return the bytes after the mapping that ends here; 0 if there is none, because rows have
        changed."""
        at = bisect_left(self._ends, end_offset)
        found = at < len(self._ends) and self._ends[at] == end_offset
        return self._after[at] if found else 0


def stays_ms(
    mappings: Iterable[SegmentRange],
    config_of: ConfigOf,
    sizes: Mapping[int, LocalBytes],
    now_ms: int,
) -> int:
    """Return how long the file of a segment with these mappings is kept, as far as time alone
    decides; 0: it may be removed now, NEVER: time alone never removes it."""
    return max(
        (_stays_ms(row, config_of(row.number), sizes, now_ms) for row in mappings), default=0
    )


def _stays_ms(
    row: SegmentRange, config: TopicConfig | None, sizes: Mapping[int, LocalBytes], now_ms: int
) -> int:
    if config is None or not row.length:
        return 0
    if not config.tiered:
        return NEVER  # this partition's records must stay local
    limit = config.local_retention_bytes
    if limit >= 0 and row.number in sizes and sizes[row.number].after(row.end_offset) >= limit:
        return 0
    if config.local_retention_ms < 0 or row.max_timestamp < 0:
        return NEVER
    return max(0, row.max_timestamp + config.local_retention_ms + 1 - now_ms)


def by_size(mappings: Iterable[SegmentRange], config_of: ConfigOf) -> set[int]:
    """Return the partitions whose local size decides, too."""
    numbers = {row.number for row in mappings}
    found = ((number, config_of(number)) for number in numbers)
    return {n for n, config in found if config is not None and config.local_retention_bytes >= 0}


def may_be_remote(mappings: Iterable[SegmentRange], config_of: ConfigOf) -> bool:
    """Return whether a full disk may remove the file: all its partitions can be read from the
    remote tier."""
    configs = [config_of(row.number) for row in mappings if row.length]
    return all(
        config is None or (config.tiered and config.tier_level is not TierLevel.DISABLE)
        for config in configs
    )
