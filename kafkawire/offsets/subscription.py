"""Subscriptions: where a reader of one partition is, where it may go, and its lag.

Pure, over a small port (`OffsetSource`), which anything that knows a partition can implement: a
client (kafkawire.cli.source) or a test. Errors are OffsetOutOfRange, one sentence. Kafka keeps this
in each client; here it is a library (docs/offsets.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kafkawire.offsets.types import OffsetOutOfRange, OffsetRange, OffsetType, validate_offset_range

NS_PER_MS = 1_000_000


class OffsetSource(Protocol):
    """The offsets of a partition, read again at each call; offsets are Kafka's."""

    def log_start(self) -> int:
        """The first offset there is."""
        ...

    def high_watermark(self) -> int:
        """The end of what readers may be given."""
        ...

    def offset_at(self, timestamp_ms: int) -> int | None:
        """The first record at or after a time; None when there is none."""
        ...

    def committed(self, group: str) -> int | None:
        """The committed offset of a group; None if there is none."""
        ...


class Seeker:
    """Finds and checks offsets of one partition."""

    __slots__ = ("_source",)

    def __init__(self, source: OffsetSource) -> None:
        self._source = source

    def find(self, offset_type: OffsetType, value: int = 0, group: str = "") -> int:
        """The offset to begin at. `value`: the offset or the time in ns, where the type asks for
        one. A committed offset that has been deleted counts as none, as with Kafka's clients."""
        low, high = self._source.log_start(), self._source.high_watermark()
        if offset_type in (OffsetType.RESUME_OR_EARLIEST, OffsetType.RESUME_OR_LATEST):
            committed = self._source.committed(group) if group else None
            if committed is not None and low <= committed <= high:
                return committed
            return low if offset_type is OffsetType.RESUME_OR_EARLIEST else high
        if offset_type is OffsetType.RESET_TO_EARLIEST:
            return low
        if offset_type is OffsetType.RESET_TO_LATEST:
            return high
        if offset_type is OffsetType.EXACT_TS_NS:
            found = self._source.offset_at(-(-value // NS_PER_MS))  # Kafka's times are in ms
            return high if found is None else found
        if offset_type is OffsetType.EXACT_OFFSET:
            return self.check(value)
        return min(max(value, low), high)

    def check(self, offset: int) -> int:
        """The offset, if one may read from it: log start to high watermark."""
        low, high = self._source.log_start(), self._source.high_watermark()
        if not low <= offset <= high:
            raise OffsetOutOfRange(
                f"offset {offset} is not within {low}..{high}, which is what the partition has"
            )
        return offset

    def check_range(self, start: int, end: int) -> OffsetRange:
        """The range [start, end), if all of it may be read."""
        return validate_offset_range(
            start, end, self._source.log_start(), self._source.high_watermark()
        )

    def range_from(self, offset: int, count: int) -> OffsetRange:
        """Up to `count` offsets from `offset` on; empty at the end of the log."""
        if count < 0:
            raise OffsetOutOfRange(f"{count} offsets cannot be read")
        return OffsetRange(self.check(offset), min(offset + count, self._source.high_watermark()))

    def lag(self, offset: int) -> int:
        """How many offsets lie between this one and the end."""
        return max(0, self._source.high_watermark() - offset)


class Subscription:
    """One reader: `position` is the next offset it wants. Nothing is committed by it."""

    __slots__ = ("_seeker", "group", "position")

    def __init__(
        self, source: OffsetSource, offset_type: OffsetType, value: int = 0, group: str = ""
    ) -> None:
        self._seeker = Seeker(source)
        self.group = group
        self.position = self._seeker.find(offset_type, value, group)

    def seek(self, offset_type: OffsetType, value: int = 0) -> int:
        """Goes elsewhere; the new position."""
        self.position = self._seeker.find(offset_type, value, self.group)
        return self.position

    def seek_to_offset(self, offset: int) -> int:
        """Goes to an offset that must be there."""
        return self.seek(OffsetType.EXACT_OFFSET, offset)

    def next_range(self, count: int) -> OffsetRange:
        """Up to `count` offsets to read now. `advance` when they are read."""
        return self._seeker.range_from(self.position, count)

    def advance(self, next_offset: int) -> None:
        """All before `next_offset` has been read; a batch may have brought more than was asked
        for. Never back: that is `seek`."""
        if next_offset < self.position:
            raise OffsetOutOfRange(
                f"cannot advance from {self.position} back to {next_offset}: use seek"
            )
        self.position = next_offset

    @property
    def lag(self) -> int:
        """Offsets between the position and the end of the log."""
        return self._seeker.lag(self.position)

    @property
    def at_end(self) -> bool:
        """Whether all there is has been read."""
        return self.lag == 0


class Subscriber:
    """The subscriptions of one process, by a name of their own."""

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
        """A new subscription. ValueError when the name is taken."""
        if name in self._subscriptions:
            raise ValueError(f"subscription {name!r} exists: close it, or take another name")
        made = Subscription(source, offset_type, value, group)
        self._subscriptions[name] = made
        return made

    def get(self, name: str) -> Subscription | None:
        """A subscription, if there is one of that name."""
        return self._subscriptions.get(name)

    def close(self, name: str) -> None:
        """Forget a subscription; none of that name is fine."""
        self._subscriptions.pop(name, None)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._subscriptions.values())

    def __len__(self) -> int:
        return len(self._subscriptions)
