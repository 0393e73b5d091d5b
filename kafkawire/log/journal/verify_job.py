"""The job `verify`: find the damaged bytes of a journal that has an index file.

A start takes the rows of a journal from its index file and reads none of its bytes; the first
reader of the journal has them checked by this job. Called by kafkawire.log.journal.verification
through the worker.
"""

from __future__ import annotations

from kafkawire.log.io.mapped_file import MappedFile
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import JournalFile, Pace
from kafkawire.log.journal.format import HEADER_BYTES
from kafkawire.log.journal.scan import scan


def run(fs: FileSystem, arguments: JournalFile, pace: Pace) -> list[tuple[int, int]]:
    """Return the damaged ranges [start, end) of positions, in order. Raises OSError if the file
    cannot be opened."""
    mapped = MappedFile(fs, arguments.path, arguments.end)
    try:
        bad = mapped.read_ahead(0, arguments.end, pace)
        if bad:  # reading through the mapping what the disk cannot read would end the process
            return sorted(bad)
        scanned = scan(mapped.view, arguments.number, HEADER_BYTES, arguments.end, 0)
        return [(gap.start, gap.end) for gap in scanned.gaps]
    finally:
        mapped.close()
