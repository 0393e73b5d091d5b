"""Encoded record batches on their way from a task to the driver: in a message, or in a file.

Files are below `PREFIX/` of a staging location, where PREFIX is the id of the query or batch. They
are deleted after the commit, with those of failed attempts. A failed micro-batch leaves its files
to the next one. A failed batch has none: a task that stages files after the driver has deleted
those of the batch finds the batch closed, and deletes its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kafkawire_spark.sink.options import SinkError

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

INLINE_BYTES = 1 << 20
"""Bytes of a task that are staged in its message, not in a file: Spark sends results of this size
without a detour."""
MAX_INLINE_BYTES = 64 << 20
"""Maximum bytes of a task without a staging location: Spark limits those of all tasks of a job
together (spark.driver.maxResultSize, 1 GiB)."""
PART_BYTES = 16 << 20
"""Size of a staged file, which the driver loads as a whole. One larger record batch is a file of
its own."""


OPEN = "open"
"""Name of the file below the prefix of a batch that is there until the batch fails."""


class StagedBatch(NamedTuple):
    """One record batch within a part: `size_bytes` of it, with so many records."""

    topic: str
    partition: int
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Adjacent record batches, in order: in `data`, or in the file `key`."""

    batches: tuple[StagedBatch, ...]
    data: bytes = b""
    key: str = ""

    @property
    def size_bytes(self) -> int:
        """Size of all batches."""
        return sum(batch.size_bytes for batch in self.batches)


class StagingWriter:
    """Stages the batches of one task below `prefix` of a place; without a place in memory."""

    def __init__(self, place: Place | None, prefix: str) -> None:
        self._place, self._prefix = place, prefix
        self._data = bytearray()
        self._batches: list[StagedBatch] = []
        self._parts: list[StagedPart] = []
        self._inline = 0

    def add(self, topic: str, partition: int, data: bytearray, records: int) -> None:
        """Add one batch. Raises SinkError, PlaceError."""
        if self._batches and len(self._data) + len(data) > PART_BYTES:
            self._seal()
        self._data += data
        self._batches.append(StagedBatch(topic, partition, len(data), records))

    def finish(self) -> tuple[StagedPart, ...]:
        if self._batches:
            self._seal(last=True)
        return tuple(self._parts)

    def _seal(self, *, last: bool = False) -> None:
        data, batches = self._data, tuple(self._batches)
        self._data, self._batches = bytearray(), []
        # The first MiB of a task stays in its message, so that small micro-batches need no files.
        small = last and not self._parts and len(data) <= INLINE_BYTES
        if self._place is not None and not small:
            key = f"{self._prefix}/{uuid.uuid4().hex}"
            self._place.put(key, memoryview(data))
            self._parts.append(StagedPart(batches, key=key))
            return
        self._inline += len(data)
        if self._inline > MAX_INLINE_BYTES:
            raise SinkError(
                f"a task has more than {MAX_INLINE_BYTES >> 20} MiB of rows, which need the option "
                "stagingLocation: a folder or bucket that the driver and all executors can use"
            )
        self._parts.append(StagedPart(batches, data=bytes(data)))


def load(place: Place | None, part: StagedPart) -> memoryview:
    """Return the bytes of a part. Raises SinkError if its file is missing or has another size."""
    data = part.data
    if part.key:
        if place is None:
            raise SinkError(f"the staged file {part.key} needs the option stagingLocation")
        try:
            data = place.get(part.key)
        except FileNotFoundError:
            raise SinkError(
                f"the staged file {place.where(part.key)} is missing: executors and driver must "
                "use the same folder, and only one driver a query"
            ) from None
    if len(data) != part.size_bytes:
        raise SinkError(f"the staged file {part.key} has {len(data)} bytes, not {part.size_bytes}")
    return memoryview(data)


def open_batch(place: Place | None, prefix: str) -> None:
    """Open a batch, before its tasks run."""
    if place is not None:
        place.put(f"{prefix}/{OPEN}", b"")


def keep_in_open_batch(place: Place | None, prefix: str, parts: Iterable[StagedPart]) -> None:
    """Delete the files of a task if its batch failed meanwhile. Raises SinkError in that case."""
    keys = [part.key for part in parts if part.key]
    if place is None or not keys:
        return
    try:
        place.size(f"{prefix}/{OPEN}")
    except FileNotFoundError:
        place.delete(keys)
        raise SinkError("another task of the batch has failed") from None


def abort_batch(place: Place | None, prefix: str) -> None:
    """Close a batch and delete its staged files."""
    if place is not None:
        place.delete([f"{prefix}/{OPEN}"])  # first: a task may stage files until it sees this
    discard(place, [prefix])


def discard(place: Place | None, prefixes: Iterable[str]) -> None:
    """Delete all staged files below prefixes."""
    if place is not None:
        for prefix in prefixes:
            place.delete(place.list(f"{prefix}/"))
