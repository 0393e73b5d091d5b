"""Rows of an index in columns: where the batches of one partition lie in the journals.

kafkawire.log.partition.hot_index has them in memory, kafkawire.log.journal.index_file on disk.
Pure.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

ROW_BYTES = 40
"""8 base offset, 8 log position, 4 length, 4 count, 8 newest timestamp, 8 running maximum of
those."""

Column: TypeAlias = "array[int]"
MAX_RUNS = 4096
"""Most runs of one plan: each costs a third of a microsecond or more to send, so one Fetch of very
small batches does not hold the event loop for longer than one of large ones."""


class IndexColumns:
    """Rows that are copied between memory and a journal's index file."""

    __slots__ = ("base", "count", "length", "log_position", "newest")

    def __init__(
        self, base: Column, log_position: Column, length: Column, count: Column, newest: Column
    ) -> None:
        self.base = base
        self.log_position = log_position
        self.length = length
        self.count = count
        self.newest = newest

    def __len__(self) -> int:
        return len(self.base)


def empty_columns() -> IndexColumns:
    return IndexColumns(array("q"), array("q"), array("I"), array("I"), array("q"))
