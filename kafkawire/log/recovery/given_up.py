"""Damaged offsets of the journals that an operator gave up, with `fsck --repair --skip-lost`.

The file `<home>/given-up` lists them by partition, together with the damaged bytes of the journals.
With it the next cut goes past them: the segment has an empty batch for each range, and its section
`lost` lists the ranges (kafkawire.log.segments.cut.job). A journal in this list is moved into the
quarantine instead of being recycled (kafkawire.log.maintenance.retention).

One line of JSON and its checksum, replaced atomically by each such repair. Format version 1.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkawire.codec.segment.lost import LostRange
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.run_file import read_json_line, write_json_line

logger = logging.getLogger(__name__)

NAME = "given-up"
VERSION = 1
MAX_FILE_BYTES = 64 << 20
"""The largest file that is read: about a million ranges, more than a check can list."""

Bytes = tuple[int, int, int]
"""Damaged bytes: the number of a journal, and [start, end) in it."""


@dataclass(slots=True)
class GivenUp:
    """`ranges` by partition number, sorted, each with the id of the topic that had the number;
    `damage`: bytes of journals whose records are among them."""

    ranges: dict[int, tuple[bytes, list[LostRange]]] = field(default_factory=dict)
    damage: set[Bytes] = field(default_factory=set)

    def ranges_of_partition(self, number: int, topic_id: bytes) -> Sequence[LostRange]:
        """Return the ranges of one partition; none if another topic has its number now."""
        known, ranges = self.ranges.get(number, (topic_id, []))
        return ranges if known == topic_id else ()

    def journals(self) -> set[int]:
        """Return the numbers of the damaged journals."""
        return {journal for journal, _, _ in self.damage}


def clip_ranges(ranges: Sequence[LostRange], start: int, end: int) -> list[LostRange]:
    """Return the parts of sorted ranges within the offsets [start, end)."""
    return [
        one._replace(first=max(one.first, start), end=min(one.end, end))
        for one in ranges
        if one.first < end and one.end > start
    ]


def skip_given_up(ranges: Sequence[LostRange], offset: int) -> int:
    """Return the next offset that was not given up, from `offset` on."""
    # Ranges are sorted and may adjoin.
    for one in ranges:
        if one.first <= offset < one.end:
            offset = one.end
    return offset


def read_given_up(fs: FileSystem, home: str) -> GivenUp:
    """Read the file; empty if there is none or it is damaged, which is logged.

    JournalFormatError if a newer version wrote it; OSError."""
    path = os.path.join(home, NAME)
    try:
        body = read_json_line(fs, path, VERSION, MAX_FILE_BYTES)
        if body is None:
            return GivenUp()
        ranges = {
            int(row["number"]): (
                bytes.fromhex(row["topic_id"]),
                [LostRange(*map(int, each)) for each in row["ranges"]],
            )
            for row in body["partitions"]
        }
        return GivenUp(ranges, {(int(a), int(b), int(c)) for a, b, c in body["damage"]})
    # Without the list nothing is cut past damage, which loses nothing.
    except (ValueError, KeyError, TypeError) as failure:
        logger.warning(
            "%s is damaged (%s): damaged journals are kept and their partitions are not cut into "
            "segments past the damage until `kafkawire fsck --repair --skip-lost` writes it again",
            path,
            failure,
        )
        return GivenUp()


def write_given_up(fs: FileSystem, home: str, given: GivenUp) -> None:
    """Replace the file, durably. If it raises OSError the old one is still there."""
    body = {
        "partitions": [
            {"number": number, "topic_id": topic_id.hex(), "ranges": ranges}
            for number, (topic_id, ranges) in sorted(given.ranges.items())
        ],
        "damage": sorted(given.damage),
    }
    write_json_line(fs, os.path.join(home, NAME), VERSION, body)
