"""The collector of keys as writers of segments see it: imports neither numpy nor numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kafkawire.codec.types import Buffer


class PartSpans(NamedTuple):
    """Where parts are in a buffer: cheaper than finding the address of each."""

    buffer: Buffer
    positions: Sequence[int]
    lengths: Sequence[int]


class KeyCollector(Protocol):
    """The keys of the partitions of one segment: `start_partition`, `add`..., then `end_partition`
    or `abandon` for each, and finally `section` and `close`. Calls other than `start_partition` for
    a partition that was not begun have no effect."""

    def start_partition(self, number: int) -> None:
        """Begin a partition."""

    def add(self, parts: Sequence[Buffer], spans: PartSpans | None = None) -> None:
        """Add whole batches whose checksums were verified, back to back; `spans`: where the parts
        are, if they are in one buffer. They must not change until `wait_for_reads` has returned."""

    def abandon(self) -> None:
        """Discard the current partition."""

    def end_partition(self) -> None:
        """End the current partition."""

    def wait_for_reads(self) -> None:
        """Wait until the parts that were added are no longer read."""

    def section(self) -> bytes | None:
        """Return the body of the section; None if no partition has an index."""

    def close(self) -> None:
        """Release what it uses; after `section`, or instead of it."""
