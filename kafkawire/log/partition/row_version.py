"""A count that rises whenever rows of segments in the offset storage are replaced.

Made by the log, raised by kafkawire.log.segments.store.swap, read by
kafkawire.log.partition.loader.
"""

from __future__ import annotations


class RowVersion:
    """`number` before and after a read of rows: if it differs, the read must be repeated."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def replaced(self) -> None:
        """Note that rows have been replaced."""
        self.number += 1
