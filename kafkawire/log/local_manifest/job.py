"""The job `manifest`: read, compact and summarize the files of a manifest, in the worker.

Input and output are local files: a manifest of a large cluster has a hundred megabytes, too much
for a pipe between the processes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.crc32c import crc32c
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import Pace
from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.fold import GapError, fold
from kafkawire.manifest.format import pack
from kafkawire.manifest.reader import read_object
from kafkawire.manifest.state import ClusterFacts, ManifestTopic, Snapshot

SLICE = 500
UUID_BYTES = 16


@dataclass(slots=True)
class KeySlices:
    """Rising keys in slices of SLICE, and a number for each key. `firsts`: the first key of each
    slice."""

    keys: list[bytes] = field(default_factory=list)
    values: list[array[int]] = field(default_factory=list)
    firsts: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.values))

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self.firsts, key) - 1
        if at < 0:
            return False
        part, found = self.keys[at], -1
        while (found := part.find(key, found + 1)) % UUID_BYTES and found >= 0:
            continue  # a match across two keys
        return found >= 0

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Return all of them, by key."""
        for keys, values in zip(self.keys, self.values, strict=True):
            for at, value in enumerate(values):
                yield keys[UUID_BYTES * at : UUID_BYTES * (at + 1)], value


@dataclass(slots=True)
class Outline:
    """The summary of a manifest, which a broker compares with its own state slice by slice: the
    process that serves clients does not read a manifest of a million topics.

    `topics`: id -> fingerprint; `objects`: uuids; `partitions`: (number, log start, end,
    fingerprint of the epochs) in columns, by slices. `sequence`: that of the last delta.
    """

    sequence: int
    cluster: ClusterFacts
    topics: KeySlices
    objects: KeySlices
    partitions: list[tuple[array[int], array[int], array[int], array[int]]]


def topic_print(facts: ManifestTopic) -> int:
    # Of sorted settings: their order in the catalog is not fixed.
    configs = sorted(facts.configs.items())
    says = (facts.name, facts.internal, facts.created_ms, configs, facts.partitions)
    return crc32c(repr(says).encode())


def partition_print(row: ManifestPartition) -> int:
    """Return a number that differs when the epochs of a partition do."""
    return crc32c(row.epochs)


def outline(state: Snapshot) -> Outline:
    topics = {topic.id: topic_print(topic) for topic in state.topics}
    objects = {state.objects.uuid(at): 0 for at in range(len(state.objects))}
    partitions = []
    rows = iter(state.partitions)
    # In columns and slices, as the broker compares them: it does not read a manifest of a million
    # topics itself.
    while part := list(islice(rows, SLICE)):
        partitions.append(
            (
                array("Q", [row.number for row in part]),
                array("q", [row.log_start for row in part]),
                array("q", [row.end for row in part]),
                array("I", [partition_print(row) for row in part]),
            )
        )
    cluster = state.cluster or ClusterFacts()
    return Outline(state.sequence, cluster, _slices(topics), _slices(objects), partitions)


def _slices(numbers: Mapping[bytes, int]) -> KeySlices:
    made = KeySlices()
    items = iter(sorted(numbers.items()))
    while part := list(islice(items, SLICE)):
        made.keys.append(b"".join([key for key, _ in part]))
        made.firsts.append(part[0][0])
        made.values.append(array("I", [value for _, value in part]))
    return made


@dataclass(slots=True)
class ManifestArguments:
    """`files`: (key, path) of a snapshot and of the deltas after it, in order. `output`: path of
    the new snapshot, which must not exist; empty: write none. `outlined`: whether a summary is
    requested."""

    files: Sequence[tuple[str, str]]
    output: str = ""
    outlined: bool = False


@dataclass(slots=True)
class ManifestResult:
    """`damaged`: a sentence, if the files cannot be read; `newer`: a newer program wrote them."""

    sequence: int = 0
    size_bytes: int = 0
    outline: Outline | None = None
    damaged: str = ""
    newer: bool = False


def run(fs: FileSystem, arguments: ManifestArguments, pace: Pace) -> ManifestResult:
    """Run the job. OSError from the disk."""
    try:
        contents = [read_object(key, _read(fs, path, pace)) for key, path in arguments.files]
        snapshot, deltas = contents[0], contents[1:]
        if not isinstance(snapshot, Snapshot):
            raise FormatError(f"{arguments.files[0][0]} is a delta")
        state = fold(snapshot, deltas)
    # Damage is a result, not a failure of the job: the caller rebuilds.
    except (FormatError, GapError) as failure:
        newer = isinstance(failure, NewerFormatError)
        return ManifestResult(damaged=str(failure), newer=newer)
    result = ManifestResult(state.sequence)
    if arguments.output:
        result.size_bytes = _write(fs, arguments.output, pack(state))
    if arguments.outlined:
        result.outline = outline(state)
    return result


def _read(fs: FileSystem, path: str, pace: Pace) -> bytes:
    file = fs.open(path)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    pace(len(data))
    return data


def _write(fs: FileSystem, path: str, data: bytes) -> int:
    """Write a file that need not be synced: it is uploaded, and written again if that fails."""
    file = fs.open(path, create=True)
    try:
        at = 0
        while at < len(data):
            at += file.pwritev([memoryview(data)[at:]], at)
    finally:
        file.close()
    return len(data)
