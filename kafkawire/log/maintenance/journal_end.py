"""End a journal at once: continue in the next one, and write the index file of this one.

Journals are rolled when they are full or old (kafkawire.log.segments.cut.cutter). A change of the
leader of a partition does not wait for that.
"""

from __future__ import annotations

import logging

from kafkawire.codec.errors import KafkaError
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.callbacks import await_callbacks
from kafkawire.log.journal.file import Journal
from kafkawire.log.maintenance.indexer import Indexer

logger = logging.getLogger(__name__)

ROLL_TRIES = 500
ROLL_PAUSE_S = 0.01
"""How long to wait for the next journal and for an index file, 5 s together: usually milliseconds;
with a full disk leadership changes without them."""


async def end_journal(commit_log: CommitLog, indexer: Indexer, active: Journal) -> bool:
    """End a journal, the active one or one that was rolled; return whether it has an index file
    within some seconds. Raises what a failed write of the commit log raises."""
    journals = commit_log.journals
    for _ in range(ROLL_TRIES):
        # 1. Roll: the frame that does it must be written.
        if journals.active is active and journals.ready:
            commit_log.roll()
            await await_callbacks(commit_log.after_write)
        # 2. Or prepare the next journal first.
        elif journals.active is active:
            journals.prepare(again=True)
        elif active.indexed:
            return True
        else:
            # 3. Write its index file; a failure is tried again until the time is over.
            try:
                await indexer.run()
            except (KafkaError, OSError) as failure:
                logger.warning("cannot write the index of journal %d: %s", active.number, failure)
            if active.indexed:
                return True
        await commit_log.env.sleep(ROLL_PAUSE_S)
    return active.indexed
