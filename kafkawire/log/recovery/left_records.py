"""Records that are only in journals of this broker, and that no reader gets: another broker has led
their partition since, and it was not cut before.

The file `<home>/left` lists them by partition, so that their journals are kept over restarts
(kafkawire.log.leadership). A journal's index file need not have them.

One line of JSON and its checksum, replaced atomically at each change. Format version 1.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.json_line import read_json_line, write_json_line

logger = logging.getLogger(__name__)

NAME = "left"
VERSION = 1
MAX_FILE_BYTES = 64 << 20
"""The largest file that is read: about a million partitions."""


@dataclass(slots=True)
class LeftRecords:
    """Of one partition: the offsets [first, end), and the numbers of the journals. An offset among
    them may have another record in a segment."""

    first: int
    end: int
    journals: list[int] = field(default_factory=list)

    def add(self, first: int, end: int, journal: int) -> None:
        """Add the offsets of one journal."""
        self.first, self.end = min(self.first, first), max(self.end, end)
        if journal not in self.journals:
            self.journals.append(journal)


def read_left(fs: FileSystem, home: str) -> dict[int, LeftRecords]:
    """Read the file; empty if there is none or it is damaged, which is logged.

    JournalFormatError if a newer version wrote it; OSError."""
    path = os.path.join(home, NAME)
    try:
        body = read_json_line(fs, path, VERSION, MAX_FILE_BYTES)
        rows = [] if body is None else body["partitions"]
        return {
            int(row["number"]): LeftRecords(
                int(row["first"]), int(row["end"]), [int(each) for each in row["journals"]]
            )
            for row in rows
        }
    except (ValueError, KeyError, TypeError) as failure:
        logger.warning(
            "%s is damaged (%s): journals with records of partitions that other brokers lead may "
            "be recycled, if their index files do not name the records",
            path,
            failure,
        )
        return {}


def write_left(fs: FileSystem, home: str, left: Mapping[int, LeftRecords]) -> None:
    """Replace the file, durably. If it raises OSError the old one is still there."""
    rows = [
        {"number": number, "first": each.first, "end": each.end, "journals": each.journals}
        for number, each in sorted(left.items())
    ]
    write_json_line(fs, os.path.join(home, NAME), VERSION, {"partitions": rows})
