"""Records in the journals of a stopped broker, found by a trial run of recovery.

For readers of a data folder (kafkawire.reading.journals): what is here is what the next start of
the broker would serve from its journals. Nothing is changed. Blocks: nothing else runs.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from kafkawire.codec.control import Aborted
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.stored import Step, add_step, select_steps
from kafkawire.log.io.disk import DiskLock, real_env
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.io.read_only_disk import ReadOnlyFileSystem
from kafkawire.log.journal.file import POSITION_MASK, Journal
from kafkawire.log.journal.ledger import expected_ledger
from kafkawire.log.journal.run_file import read_run
from kafkawire.log.recovery.recover import recover
from kafkawire.log.recovery.restore import TransactionHistory
from kafkawire.log.recovery.result import Recovered

logger = logging.getLogger(__name__)


class JournalFrame(NamedTuple):
    """The batches [base, end) of a partition at `position` of a journal; `newest`: the newest
    timestamp of them; `stored_ms`: when they were written, or when their journal was begun if its
    index file does not say."""

    base: int
    end: int
    newest: int
    journal: Journal
    position: int
    length: int
    stored_ms: int


class StoppedJournals:
    """The journals in `home` (`<data>/brokers/<node id>`). Its lock is held until `close`, together
    with other readers.

    `log_position`: the one of the checkpoint, up to which everything is committed; 0 if it is not
    known. Raises BlockingIOError if a broker uses the folder, FormatError if a newer program has
    written it, LogError or OSError if it cannot be read.
    """

    def __init__(self, home: str, log_position: int) -> None:
        env = real_env()
        self._fs = ReadOnlyFileSystem(env.fs)
        # Shared: several readers, and no broker, at a time.
        self._lock = DiskLock(os.path.join(home, "lock"), shared=True)
        try:
            self._recovered = _recover(replace(env, fs=self._fs), home, log_position)
            self._history = TransactionHistory()
            for found in self._recovered.found:
                self._history.take_journal(found, found.index(self._fs))
                # Mapped again at a read: there may be a thousand.
                found.journal.cool()
        except BaseException:
            self._lock.release()
            raise
        finally:
            env.offload.close()

    def close(self) -> None:
        self._lock.release()

    def frames(self, number: int, base: int) -> Iterator[JournalFrame]:
        """Yield the frames of a partition that have offsets from `base` on, ascending."""
        for found in self._recovered.found:
            journal, index = found.journal, found.index(self._fs)
            stored: list[Step] = []
            if found.header is not None:
                add_step(stored, 0, found.header.created_ms)
            for step in [] if index is None else index.stored:
                add_step(stored, *step)
            for _, parts in found.rows_by_partition(index, [number]):
                for rows in parts:
                    for at, first in enumerate(rows.base):
                        end = first + rows.count[at]
                        if end > base:
                            position = rows.log_position[at] & POSITION_MASK
                            known = select_steps(stored, position, position + 1)
                            stored_ms = known[0][1] if known else 0
                            yield JournalFrame(
                                first, end, rows.newest[at], journal, position, rows.length[at],
                                stored_ms,
                            )  # fmt: skip

    def read(self, frame: JournalFrame) -> bytes:
        """Return the batches of a frame, whose checksums are not verified. OSError."""
        return frame.journal.read(self._fs, [(frame.position, frame.length)])[0]

    def list_aborted(self, number: int) -> list[Aborted]:
        """Return the aborted transactions of a partition that end in the journals."""
        return self._history.list_aborted(number)

    def first_open(self, number: int) -> int | None:
        """Return the first offset of the transactions of a partition that are open."""
        return self._history.first_open(number)


def open_stopped(home: str, log_position: int) -> StoppedJournals | None:
    """Open the journals in `home`; None if there are none, a broker uses them, or they cannot be
    read."""
    if not os.path.isdir(os.path.join(home, "journals")):
        return None
    try:
        return StoppedJournals(home, log_position)
    except (LogError, FormatError, OSError) as failure:
        logger.info("the journals in %s are not read: %s", home, failure)
        return None


def _recover(env: Env, home: str, log_position: int) -> Recovered:
    last = read_run(env.fs, home)
    ledger, _ = expected_ledger(env.fs, home, last)
    end = last.end if last is not None else -1
    return recover(env, os.path.join(home, "journals"), log_position, end, ledger)
