"""Confirms that the tier has the object of a segment before a local file of it is removed.

The rows in SQL say what was uploaded, not what is there now: a bucket may have been deleted,
emptied or replaced, also while the broker was down. The file is the only copy then. Two HEAD
requests for each file that is removed: before its row changes, and after the grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.log.segments.store.segment_store import Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.warnings import Warnings

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""Concurrent requests: half of the reading threads of a store."""
OUTAGE_S = 30.0
"""Time until the tier is asked again after a request failed."""
LOST_S = 600.0
"""Time until a lost object is asked for again, which an operator may bring back."""


class ObjectPresence:
    """Asks the tiers for objects. `store_of` returns the store of a segment's object, `on_lost` is
    called with each segment whose object is lost."""

    def __init__(
        self,
        env: Env,
        store_of: Callable[[Segment], Awaitable[ObjectStore]],
        on_lost: Callable[[Segment], None],
    ) -> None:
        self._env = env
        self._store_of = store_of
        self._on_lost = on_lost
        self._lost: dict[int, float] = {}  # segment -> when (monotonic) to ask again
        self._asks_at = 0.0
        self._warnings = Warnings(env, logger)

    async def confirm(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments whose objects are there, with all their bytes; none during an
        outage."""
        now = self._env.clock.monotonic()
        self._lost = {segment_id: at for segment_id, at in self._lost.items() if at > now}
        due = [each for each in segments if each.row.id not in self._lost]
        found: list[Segment] = []
        for at in range(0, len(due), AT_ONCE):
            part = due[at : at + AT_ONCE]
            answers = await asyncio.gather(*map(self._is_there, part))
            found += [segment for segment, there in zip(part, answers, strict=True) if there]
        return found

    def is_lost(self, segment: Segment) -> bool:
        """Return whether the last call has not found the object of a segment."""
        return segment.row.id in self._lost

    async def _is_there(self, segment: Segment) -> bool:
        row, now = segment.row, self._env.clock.monotonic()
        if now < self._asks_at:
            return False
        try:
            store = await self._store_of(segment)
            size_bytes = (await store.head(segment_key(row.object))).size_bytes
        except NoSuchObject:
            why = "is gone"
        except (StoreError, KafkaError) as failure:
            self._asks_at = now + OUTAGE_S
            self._warnings.warn("asking for objects whose local files may be removed", failure)
            return False
        else:
            if size_bytes == row.size_bytes:
                return True
            why = f"has {size_bytes} of {row.size_bytes} bytes"
        logger.error(
            "the object of segment %s %s in the remote tier: its local file is kept; bring the "
            "object back, or upload the file again with `kafkawire tier scrub --repair`",
            segment.name, why,
        )  # fmt: skip
        self._lost[row.id] = now + LOST_S
        self._on_lost(segment)
        return False
