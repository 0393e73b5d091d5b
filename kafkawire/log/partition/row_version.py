"""A count that rises whenever rows of segments in the offset storage are replaced.

kafkawire.log.segments.store.swap raises it, kafkawire.log.partition.loader reads it.
"""

from __future__ import annotations


class RowVersion:
    """A count of replacements. If `number` differs before and after a read of rows, the read must
    be repeated."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def replaced(self) -> None:
        """Note that rows have been replaced."""
        self.number += 1
