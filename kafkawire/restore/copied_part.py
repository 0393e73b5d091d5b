"""Copy the part of an object that no other segment has into a local segment.

The outputs of a compaction may end within an input. If only some of them were uploaded when the
local files were lost, the end of that input is in its object alone, and mappings cannot point to a
part of a segment. The copy is uploaded later, like any other segment.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Sequence

from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import (
    Input,
    JobResult,
    Keep,
    RewriteArguments,
    SegmentOutput,
    entries_of,
    no_pace,
    pack,
)
from kafkawire.log.segments.file.open import segment_path
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.merge import job
from kafkawire.log.segments.store.segment_store import remove
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.catalog import Catalog
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.offsets.catalog.port import SegmentCatalog, SegmentRange, SegmentRow, range_of
from kafkawire.restore.finished_objects import Stores
from kafkawire.tiering.store.retrying import RetryingCalls

logger = logging.getLogger(__name__)

DUE_NOW = 0
"""Retention check time that is already due; the first check computes the next one."""
FOLDER = "tier-restore"
"""In the broker's folder, for one object at a time."""

Copied = tuple[SegmentRow, list[SegmentRange]]


class PartCopier:
    """Copies parts of objects into new local segments, which are STARTED until a swap finishes
    them. `home`: the broker's folder."""

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        catalog: Catalog,
        node_id: int,
        home: str,
        stores: Stores,
    ) -> None:
        self._env = env
        self._storage = storage
        self._origins = Origins(env, catalog)
        self._node_id = node_id
        self._segments = os.path.join(home, "segments")
        self._temporary = os.path.join(home, FOLDER)
        self._stores = stores

    async def copy(self, source: SegmentRow, keep: Keep, generation: int) -> Copied | None:
        """Return a segment with the offsets to keep of one partition; None if the object of the
        source cannot be read. Raises StoreError and OSError if a retry may help, and the storage's
        errors."""
        env, submit = self._env, self._env.offload.submit
        store = self._stores(source.tier)
        if store is None:
            return None
        key, path = segment_key(source.object), os.path.join(self._temporary, source.object.hex())
        row = SegmentRow(
            env.random.randbytes(16), self._node_id, env.clock.now_ms(),
            generation=generation, retention_class=source.retention_class,
        )  # fmt: skip
        (row.id,) = await self._storage.start_segments([row])
        output = SegmentOutput(
            segment_path(self._segments, row.uuid), row.uuid, [], generation, row.retention_class
        )
        origin = await self._origins.of([keep.number])
        arguments = RewriteArguments(
            self._node_id, row.created_ms, [Input(path, source.uuid, pack([keep]))], output, origin
        )
        await submit("files", self._prepare, path)
        try:
            await RetryingCalls(env, store).download(key, path, -1)
            result: JobResult = await submit("files", job.run, env.fs, arguments, no_pace)
            problem = result.damaged[0].text if result.damaged else ""
        except (NoSuchObject, FormatError, ValueError) as failure:
            problem = str(failure)
        finally:
            await submit("files", env.fs.remove, path)
        if problem or not result.made[0].size_bytes:
            logger.error("cannot copy from %s: %s", key, problem or "it has no such records")
            await self._storage.drop_segments([row.id])
            return None
        (made,) = result.made
        row.size_bytes = made.size_bytes
        return row, [range_of(entry, row.id, DUE_NOW) for entry in entries_of(made)]

    async def discard(self, rows: Sequence[SegmentRow]) -> None:
        """Remove copies that are not used. Raises OSError and the storage's errors."""
        paths = [segment_path(self._segments, row.uuid) for row in rows]
        await self._env.offload.submit("files", remove, self._env.fs, self._segments, paths)
        await self._storage.drop_segments([row.id for row in rows])

    def _prepare(self, path: str) -> None:
        """Remove what an earlier process left. Runs in a thread."""
        self._env.fs.makedirs(self._temporary)
        self._env.fs.remove(path)
