"""Downloads of remote segments that are to be merged, concurrently with other merges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import HEADER_BYTES, TAIL_BYTES, read_trailer
from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.remote_tier import Localizer, RemoteTier
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.plural import count

logger = logging.getLogger(__name__)

WHOLE_PERCENT = 90
"""A remote segment with such a part of its file alive counts as whole: the rest may be its indexes,
and finding out would cost a request for each segment after each start."""
WAITS = 20
"""Seconds between checks whether files have arrived, while a caller waits for them."""
ASKED_AGAIN_S = 600.0
"""Seconds without requests for sizes after a failure of the remote tier: they are not urgent."""


class Fetcher:
    """Downloads remote segments for a merge."""

    __slots__ = ("_ask_at", "_env", "_failed", "_learning", "_remote", "_segments", "_task")

    def __init__(self, env: Env, remote: RemoteTier) -> None:
        self._env = env
        self._remote = remote
        self._segments: list[Segment] = []  # pinned; fetched when the task is done
        self._task: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None
        self._failed: list[int] = []
        self._ask_at = 0.0  # monotonic

    @property
    def is_free(self) -> bool:
        """Whether segments may be requested now."""
        return not self._segments and self._remote.localizer is not None

    @property
    def is_done(self) -> bool:
        """Whether the requested segments have local files."""
        return bool(self._segments) and self._task is not None and self._task.done()

    def fetch(self, segments: Iterable[Segment]) -> None:
        """Start to fetch those inputs of a merge that have no file, while the fetcher is free. The
        files of all inputs stay until they are released."""
        localizer = self._remote.localizer
        assert localizer is not None, "the fetcher is free"
        self._segments = list(segments)
        for segment in self._segments:
            segment.pins += 1
        # A task of its own: a download may take minutes, and the deletion of files waits while the
        # merger works.
        self._task = self._env.spawn(self._fetch(localizer), "fetch")

    async def wait(self, seconds: float) -> bool:
        """Return whether the requested segments arrive within so many seconds."""
        # Sleeps, so that the merger continues soon after short downloads.
        for _ in range(WAITS):
            if self.is_done or not self._segments:
                break
            await self._env.sleep(seconds / WAITS)
        return self.is_done

    async def _fetch(self, localizer: Localizer) -> None:
        try:
            await localizer.localize(self._segments)
        except (KafkaError, OSError) as failure:
            number = count(len(self._segments), "segment")
            logger.warning("cannot fetch %s for a merge: %s", number, failure)
            # The merger leaves them alone for a while.
            self._failed += [segment.row.id for segment in self._segments]
            self.release()

    def release(self) -> None:
        for segment in self._segments:
            segment.pins -= 1
        self._segments = []

    def take_failed(self) -> list[int]:
        """Return the ids of segments that could not be fetched since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def learn(self, segments: Iterable[Segment]) -> None:
        """Find out the original size of remote segments that may have dead bytes."""
        unknown = []
        for segment in segments:
            row = segment.row
            # Close enough: the rest may be its indexes, and the trailer would cost a request.
            if 100 * row.live_bytes >= WHOLE_PERCENT * row.size_bytes:
                segment.payload_bytes = row.live_bytes
            else:
                unknown.append(segment)
        localizer = self._remote.localizer
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
                # As if nothing of it was dead: it is not rewritten because of that.
                segment.payload_bytes = segment.row.live_bytes
            except (KafkaError, OSError) as failure:
                logger.info("cannot read the index of segment %s yet: %s", segment.name, failure)
                # The storage does not answer: sizes are not urgent.
                self._ask_at = self._env.clock.monotonic() + ASKED_AGAIN_S
                return

    def close(self) -> None:
        for task in (self._task, self._learning):
            if task is not None:
                task.cancel()
