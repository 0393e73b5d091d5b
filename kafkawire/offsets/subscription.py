"""Subscriptions: the position of a reader of one partition, its valid range, and its lag.

Pure, over the small port `OffsetSource`, which a client or a test implements. Errors are
OffsetOutOfRange with one sentence. In Kafka each client implements this; here it is a library
(docs/offsets.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kafkawire.offsets.types import OffsetOutOfRange, OffsetRange, OffsetType, validate_offset_range

NS_PER_MS = 1_000_000


class OffsetSource(Protocol):
    """The offsets of a partition, read again at each call; offsets are Kafka's."""

    def log_start(self) -> int:
        """Return the first available offset."""

    def high_watermark(self) -> int:
        """Return the high watermark, the end of readable offsets."""

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time; None if there is none."""

    def committed(self, group: str) -> int | None:
        """Return the committed offset of a group; None if there is none."""


class Seeker:
    """Finds and validates offsets of one partition."""

    __slots__ = ("_source",)

    def __init__(self, source: OffsetSource) -> None:
        self._source = source

    def find(self, offset_type: OffsetType, value: int = 0, group: str = "") -> int:
        """Return the first offset to read. `value`: the offset or the time in ns, if the type needs
        one."""
        low, high = self._source.log_start(), self._source.high_watermark()
        if offset_type in (OffsetType.RESUME_OR_EARLIEST, OffsetType.RESUME_OR_LATEST):
            committed = self._source.committed(group) if group else None
            # As in Kafka's clients, one that was deleted counts as none (auto.offset.reset).
            if committed is not None and low <= committed <= high:
                return committed
            return low if offset_type is OffsetType.RESUME_OR_EARLIEST else high
        if offset_type is OffsetType.RESET_TO_EARLIEST:
            return low
        if offset_type is OffsetType.RESET_TO_LATEST:
            return high
        if offset_type is OffsetType.EXACT_TS_NS:
            # Kafka's timestamps are milliseconds: rounded up, so that no record is before the time.
            found = self._source.offset_at(-(-value // NS_PER_MS))
            return high if found is None else found
        if offset_type is OffsetType.EXACT_OFFSET:
            return self.check(value)
        return min(max(value, low), high)

    def check(self, offset: int) -> int:
        """Return the offset if it may be read from: log start to high watermark."""
        low, high = self._source.log_start(), self._source.high_watermark()
        if not low <= offset <= high:
            raise OffsetOutOfRange(
                f"offset {offset} is not within {low}..{high}, which is what the partition has"
            )
        return offset

    def check_range(self, start: int, end: int) -> OffsetRange:
        return validate_offset_range(
            start, end, self._source.log_start(), self._source.high_watermark()
        )

    def range_from(self, offset: int, count: int) -> OffsetRange:
        """Return up to `count` offsets from `offset` on; empty at the end of the log."""
        if count < 0:
            raise OffsetOutOfRange(f"{count} offsets cannot be read")
        return OffsetRange(self.check(offset), min(offset + count, self._source.high_watermark()))

    def lag(self, offset: int) -> int:
        """Return the number of offsets between this one and the end."""
        return max(0, self._source.high_watermark() - offset)


class Subscription:
    """One reader: `position` is the next offset to read. It never commits offsets."""

    __slots__ = ("_seeker", "group", "position")

    def __init__(
        self, source: OffsetSource, offset_type: OffsetType, value: int = 0, group: str = ""
    ) -> None:
        self._seeker = Seeker(source)
        self.group = group
        self.position = self._seeker.find(offset_type, value, group)

    def seek(self, offset_type: OffsetType, value: int = 0) -> int:
        """Move to another position and return it."""
        self.position = self._seeker.find(offset_type, value, self.group)
        return self.position

    def seek_to_offset(self, offset: int) -> int:
        """Move to an offset that must exist."""
        return self.seek(OffsetType.EXACT_OFFSET, offset)

    def next_range(self, count: int) -> OffsetRange:
        """Return up to `count` offsets to read now. Call `advance` after reading them."""
        return self._seeker.range_from(self.position, count)

    def advance(self, next_offset: int) -> None:
        """All records before `next_offset` have been read, which may be more than requested. Never
        moves back: use `seek` for that."""
        if next_offset < self.position:
            raise OffsetOutOfRange(
                f"cannot advance from {self.position} back to {next_offset}: use seek"
            )
        self.position = next_offset

    @property
    def lag(self) -> int:
        """Return the number of offsets between the position and the end of the log."""
        return self._seeker.lag(self.position)

    @property
    def at_end(self) -> bool:
        """Return whether all records have been read."""
        return self.lag == 0


class Subscriber:
    """The subscriptions of one process, by unique name."""

    __slots__ = ("_subscriptions",)

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}

    def create(
        self,
        name: str,
        source: OffsetSource,
        offset_type: OffsetType,
        value: int = 0,
        group: str = "",
    ) -> Subscription:
        """Create a subscription. Raises ValueError if the name is taken."""
        if name in self._subscriptions:
            raise ValueError(f"subscription {name!r} exists: close it, or take another name")
        made = Subscription(source, offset_type, value, group)
        self._subscriptions[name] = made
        return made

    def get(self, name: str) -> Subscription | None:
        """Return the subscription of a name, or None."""
        return self._subscriptions.get(name)

    def close(self, name: str) -> None:
        """Remove a subscription; an unknown name is ignored."""
        self._subscriptions.pop(name, None)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._subscriptions.values())

    def __len__(self) -> int:
        return len(self._subscriptions)
