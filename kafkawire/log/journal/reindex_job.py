"""The job `index`: rebuild the index file of a rolled journal from the journal.

For an index file that is damaged while its rows are not in memory. Every frame is checked; a
damaged one has no row, and its readers get an error.
"""

from __future__ import annotations

import os.path

from kafkawire.codec.batches import TRANSACTIONAL
from kafkawire.log.io.mapped_file import MappedFile
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import JournalFile, Pace
from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.journal.format import HEADER_BYTES
from kafkawire.log.journal.index_file import Extent, pack_index, write_index
from kafkawire.log.journal.scan import scan


def run(fs: FileSystem, arguments: JournalFile, pace: Pace) -> int:
    """Return how many frames the journal has. OSError if it cannot be read or the index not
    written."""
    journal = MappedFile(fs, arguments.path, arguments.end)
    try:
        journal.need(0, arguments.end, pace)
        found = scan(journal.view, arguments.number, HEADER_BYTES, arguments.end, 0)
    finally:
        journal.close()
    claimed = arguments.number << POSITION_BITS | arguments.end  # a rolled journal is durable
    extent = Extent(arguments.end, found.run, claimed, found.frames)
    # Where its transactions began may be known from the journals before it alone.
    complete = not any(
        fact[1][5] & TRANSACTIONAL for facts in found.facts.values() for fact in facts
    )
    data = pack_index(arguments.number, extent, found.rows, complete=complete)
    write_index(fs, os.path.dirname(arguments.path), arguments.number, data)
    return found.frames
