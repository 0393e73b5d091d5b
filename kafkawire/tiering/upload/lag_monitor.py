"""The promise that a record is in the remote tier after `tiering.max.lag.ms`: is it kept?

Checked now and then; a topic whose promise is missed is an ERROR once, until it is met again. All
that were missed in one check share a line, since they mostly have one cause. While a person has
paused uploads, nothing is promised.
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
"""Partitions of late segments checked in a second, on average: some hundredths of a core, also
when ten thousand partitions have waited for hours."""
MAX_NAMED = 5
"""Topics named in one line; `kafkawire tier why` has all of them."""


class LagMonitor:
    """The monitor of `tiering.max.lag.ms`. `missed`: the topics whose promise is missed now, by id
    -> name; `episodes` counts how often that began. `trouble` says why nothing can be uploaded at
    all, if it is so."""

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
        """Find out, and say what has changed."""
        now = self._env.clock.monotonic()
        if self._dispatcher.paused or now < self._not_before:
            return
        scanned = 0
        missed: dict[bytes, str] = {}
        why = ""
        for candidate in list(self._dispatcher.candidates.values()):
            if candidate.late <= now:
                scanned += len(candidate.numbers)
                self._note(missed, await self._candidates.missed(candidate))
                if candidate.segment_id in self._dispatcher.candidates:
                    reason = self._dispatcher.why(candidate.segment_id, now)
                    why = why or f"{reason.reason.value} {reason.detail}".strip()
        self._note(missed, await self._timing.overdue())
        why = self._trouble() or self._dispatcher.trouble or why
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
