"""Monitors the limit `tiering.max.lag.ms` for the upload of records.

Checked periodically. A topic that exceeds its limit is logged once as an ERROR, until it meets the
limit again. Topics found by one check share a log line, since they usually have one cause. While an
operator has paused uploads no limit applies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kafkawire.log.io.ports import Env
from kafkawire.log.segments.cut.schedule import Timing
from kafkawire.metadata.catalog import Catalog
from kafkawire.tiering.upload.candidates import UploadCandidates
from kafkawire.tiering.upload.scheduler import Dispatcher

logger = logging.getLogger(__name__)

SCANNED_PER_S = 20_000
"""Average rate of the scan over partitions of late segments: some hundredths of a core, also after
hours without uploads of ten thousand partitions."""
MAX_NAMED = 5
"""Maximum number of topics in one log line; `kafkawire tier why` lists all."""


class LagMonitor:
    """The monitor of `tiering.max.lag.ms`. `missed`: topics that exceed it now, id -> name;
    `episodes` counts how often that began. `trouble` returns why nothing at all can be uploaded, if
    so."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        dispatcher: Dispatcher,
        candidates: UploadCandidates,
        timing: Timing,
        trouble: Callable[[], str],
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._candidates = candidates
        self._timing = timing
        self._trouble = trouble
        self.missed: dict[bytes, str] = {}
        self.episodes = 0
        self._not_before = 0.0

    async def scan(self) -> None:
        now = self._env.clock.monotonic()
        if self._dispatcher.paused or now < self._not_before:
            return
        scanned = 0
        missed: dict[bytes, str] = {}
        why = ""
        for candidate in list(self._dispatcher.candidates.values()):
            if candidate.late <= now:
                scanned += len(candidate.numbers)
                self._note(missed, await self._candidates.list_late_partitions(candidate))
                if candidate.segment_id in self._dispatcher.candidates:
                    reason = self._dispatcher.why(candidate.segment_id, now)
                    why = why or f"{reason.reason.value} {reason.detail}".strip()
        self._note(missed, await self._timing.overdue())
        why = self._trouble() or self._dispatcher.trouble or why
        # The more was scanned, the later the next scan: its average cost is bounded.
        self._not_before = now + scanned / SCANNED_PER_S
        self._say(missed, why or "the records are in the journals still")

    def _note(self, missed: dict[bytes, str], numbers: Iterable[int]) -> None:
        for number in numbers:
            location = self._catalog.locate(number)
            if location is not None:
                missed[location.topic_id] = location.topic

    def _say(self, missed: dict[bytes, str], why: str) -> None:
        begun = sorted(missed[each] for each in missed.keys() - self.missed.keys())
        ended = sorted(self.missed[each] for each in self.missed.keys() - missed.keys())
        self.missed = missed
        if begun:
            self.episodes += len(begun)
            logger.error(
                "records of %s have waited for upload longer than tiering.max.lag.ms: %s",
                _names(begun),
                why,
            )
        if ended:
            logger.info("records of %s are uploaded within tiering.max.lag.ms again", _names(ended))


def _names(topics: list[str]) -> str:
    shown = ", ".join(topics[:MAX_NAMED])
    more = len(topics) - MAX_NAMED
    return f"{len(topics)} topics ({shown}{f' and {more} more' if more > 0 else ''})"
