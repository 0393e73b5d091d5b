"""Remote segments that are to be rewritten, brought back as files beside the rewriter's work.

A download may take minutes, and cutting waits while the rewriter has its turn. So one segment at a
time is fetched in a task of its own, pinned, and rewritten at a later look, when it is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.segment import HEADER_BYTES, TAIL_BYTES, FormatError, read_trailer
from log.env import Env
from log.segments.localizing import Localizer
from log.segments.store import Segment, SegmentStore
from offsets.storage import LIVE

logger = logging.getLogger(__name__)

WHOLE_PERCENT = 90
"""A remote segment with so much of its file alive is taken for whole: the rest may be its indexes,
and to know would cost a request for each segment after each start."""
ASKED_AGAIN_S = 600.0
"""After a failure the remote tier is not asked for sizes for so long: they are not urgent."""


class Fetcher:
    """See the module."""

    __slots__ = ("_ask_at", "_env", "_failed", "_learning", "_segment", "_store", "_task")

    def __init__(self, env: Env, store: SegmentStore) -> None:
        self._env = env
        self._store = store
        self._segment: Segment | None = None  # pinned; fetched when the task is done
        self._task: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None
        self._failed: list[int] = []
        self._ask_at = 0.0  # monotonic

    def takes(self, segment: Segment) -> bool:
        """Whether a segment that is not local is here, or may be asked for now."""
        if self._segment is segment:
            return self._task is not None and self._task.done()
        return self._segment is None and self._store.localizer is not None

    def fetch(self, segment: Segment) -> bool:
        """Whether a segment that is taken is here. If not it is from now on fetched."""
        if self._segment is segment:
            return True
        assert self._store.localizer is not None, "only what is taken is fetched"
        segment.pins += 1
        self._segment = segment
        self._task = self._env.spawn(self._fetch(segment, self._store.localizer), "fetch")
        return False

    async def _fetch(self, segment: Segment, localizer: Localizer) -> None:
        try:
            await localizer.localize([segment])
        except (KafkaError, OSError) as failure:
            logger.warning("segment %s could not be fetched: %s", segment.name, failure)
            self._failed.append(segment.row.id)
            self.release(segment)

    def release(self, segment: Segment) -> None:
        """It has been rewritten, or will not be: the next one may come."""
        if self._segment is segment:
            segment.pins -= 1
            self._segment = None

    def tidy(self) -> list[int]:
        """Let go of what has come in vain; the ids of what could not be fetched since."""
        segment = self._segment
        if segment is not None and segment.row.state != LIVE and self.takes(segment):
            self.release(segment)
        failed, self._failed = self._failed, []
        return failed

    def learn(self, segments: Iterable[Segment]) -> None:
        """Learn how much was once written to remote segments, if they may have lost a part."""
        unknown = []
        for segment in segments:
            row = segment.row
            if 100 * row.live_bytes >= WHOLE_PERCENT * row.size_bytes:
                segment.payload_bytes = row.live_bytes
            else:
                unknown.append(segment)
        localizer = self._store.localizer
        if not unknown or localizer is None or self._env.clock.monotonic() < self._ask_at:
            return
        if self._learning is None or self._learning.done():
            self._learning = self._env.spawn(self._learn(unknown, localizer), "learn sizes")

    async def _learn(self, segments: Sequence[Segment], localizer: Localizer) -> None:
        for segment in segments:
            size = segment.row.size_bytes
            try:
                length = min(TAIL_BYTES, size)
                tail = await localizer.read(segment, -length, length)
                segment.payload_bytes = read_trailer(tail, size).batches_end - HEADER_BYTES
            except FormatError as failure:
                logger.warning("segment %s: %s", segment.name, failure)
                segment.payload_bytes = segment.row.live_bytes
            except (KafkaError, OSError) as failure:
                logger.info("how much segment %s had is not known yet: %s", segment.name, failure)
                self._ask_at = self._env.clock.monotonic() + ASKED_AGAIN_S
                return

    def close(self) -> None:
        """Give up what is under way."""
        for task in (self._task, self._learning):
            if task is not None:
                task.cancel()
