"""Stops a broker whose database was replaced, while it runs, by an older copy.

`kafkawire.log.recovery.identity` notices it within a second. What SQL has then fits neither the
journals and segments nor the state in memory, and reads of partitions that are not in memory would
end too early: so the process acknowledges nothing more and ends, and its next start is refused
(`check_pairing`). What it acknowledged until then is in its journals and segments, from which
`kafkawire restore --from-log` rebuilds the metadata.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable

from kafkawire.log.manager import Log
from kafkawire.log.recovery.identity import rebuild_command

logger = logging.getLogger(__name__)


class OlderMetadataStop:
    """How a broker ends once SQL has less than it has seen there. `folder`: of the broker."""

    def __init__(self, log: Log, folder: str) -> None:
        self._log = log
        self._data = os.path.dirname(os.path.dirname(folder))
        self._when_found: list[Callable[[str], None]] = []

    def when_found(self, fn: Callable[[str], None]) -> None:
        """Call `fn` with the reason when SQL has less than was seen there: the process has to
        end."""
        self._when_found.append(fn)

    def on_older_metadata(self, why: str) -> None:
        """Acknowledge nothing more."""
        reason = (
            f"{why}. It is an older copy or another database: put the newest copy back, or stop "
            f"all brokers and rebuild it with {rebuild_command(self._data)}"
        )
        logger.critical("%s. This broker acknowledges nothing more and ends", reason)
        self._log.commit_log.stop_writing(why)
        for fn in self._when_found:
            fn(reason)
