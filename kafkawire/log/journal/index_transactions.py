"""The section transactions of a journal's index file (kafkawire.log.journal.index_file). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from kafkawire.codec.control import Aborted
from kafkawire.log.journal.format import JournalFormatError

_COUNTS = Struct("<II")
_ABORTED = Struct("<Qqqq")
_OPENED = Struct("<Qqq")


@dataclass(frozen=True, slots=True)
class JournalTransactions:
    """Transactions of the partitions of a journal, by partition number: `aborted`, whose markers
    are in it, and `opened`, by producer ID the first offset of those that were open at its end."""

    aborted: dict[int, list[Aborted]] = field(default_factory=dict)
    opened: dict[int, dict[int, int]] = field(default_factory=dict)


def pack_transactions(transactions: JournalTransactions) -> bytes:
    """Encode the section."""
    aborted = [(key, *entry) for key, found in transactions.aborted.items() for entry in found]
    opened = [(key, *entry) for key, some in transactions.opened.items() for entry in some.items()]
    parts = [_COUNTS.pack(len(aborted), len(opened))]
    parts += [_ABORTED.pack(*entry) for entry in aborted]
    parts += [_OPENED.pack(*entry) for entry in opened]
    return b"".join(parts)


def read_transactions(section: memoryview) -> JournalTransactions:
    """Decode a section that was checked; JournalFormatError if its counts do not fit."""
    found = JournalTransactions()
    ended, begun = _COUNTS.unpack_from(section) if len(section) >= _COUNTS.size else (0, 0)
    middle = _COUNTS.size + ended * _ABORTED.size
    if middle + begun * _OPENED.size != len(section):
        raise JournalFormatError("damaged index file")
    for key, *entry in _ABORTED.iter_unpack(section[_COUNTS.size : middle]):
        producer_id, first, last = entry
        found.aborted.setdefault(key, []).append((producer_id, first, last))
    for key, producer_id, first in _OPENED.iter_unpack(section[middle:]):
        found.opened.setdefault(key, {})[producer_id] = first
    return found
