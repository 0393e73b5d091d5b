"""Jobs of the worker process, by name: their requests and results.

A job is a plain function of (file system, arguments, pace). It reads committed bytes and writes
files, and uses nothing else, so it runs in the simulation too. It calls pace(n) for every n bytes
it has read, which limits the rate. Arguments and results are pickled; long lists are packed in
slices, so that the event loop never pickles ten thousand objects at once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any, TypeAlias

from kafkawire.codec.segment.format import PartitionEntry, PartitionState
from kafkawire.log.io.ports import FileSystem, WorkerError

Pace: TypeAlias = Callable[[int], None]
Job: TypeAlias = Callable[[FileSystem, Any, Pace], Any]
Packed: TypeAlias = list[bytes]

SLICE = 256
"""Objects pickled at once: about half a millisecond."""

JOBS = {
    "cut": "kafkawire.log.segments.cut.job",
    "rewrite": "kafkawire.log.segments.merge.job",
    "compact": "kafkawire.log.segments.compact.job",
    "scrub": "kafkawire.log.segments.file.verify",
    "check": "kafkawire.log.segments.file.verify",
    "skip": "kafkawire.log.segments.skip.job",
    "manifest": "kafkawire.log.local_manifest.job",
    "pack": "kafkawire.log.segments.file.pack_job",
    "index": "kafkawire.log.journal.reindex_job",
    "verify": "kafkawire.log.journal.verify_job",
}
"""The job of each name is the function `run` of this module, imported at its first use: the broker
process, which runs no jobs, imports none. `check` is `scrub` before an upload, which does not wait
for jobs that take minutes."""

SHORT = frozenset({"cut", "manifest", "check", "index", "verify"})
"""Jobs of seconds that other work waits for; all others, of minutes, run in a second process."""


@dataclass(slots=True)
class JournalFile:
    """A rolled journal: `end` is the position after its last frame; its index file is next to
    it."""

    number: int
    path: str
    end: int


@dataclass(slots=True)
class PartitionToCut:
    """A partition to cut: its batches in the journals that cover [from_offset, to_offset), except
    for the ranges that were given up, which are in `state.lost`. A batch ends at `to_offset`;
    `from_offset` may be inside of one."""

    number: int
    topic_id: bytes
    topic: str
    index: int
    from_offset: int
    to_offset: int
    state: PartitionState


@dataclass(slots=True)
class SegmentOutput:
    """A segment to write: its file must not exist. `numbers`: the partitions in it (cut only);
    `generation`, `retention_class`: as in its row, for its origin section."""

    path: str
    uuid: bytes
    numbers: list[int] = field(default_factory=list)
    generation: int = 0
    retention_class: str = ""


@dataclass(slots=True)
class JobOrigin:
    """Cluster and topics of the outputs of a job: packed TopicOrigin of all of them. Without it (in
    tests and benchmarks) the outputs have no origin section."""

    cluster_id: str
    topics: Packed


@dataclass(slots=True)
class CutArguments:
    """`journals` oldest first; `wanted`: packed `PartitionToCut`, in any order. `trusts_heads`: the
    newest timestamps in the heads of batches are not computed again (record.validation=head)."""

    node_id: int
    created_ms: int
    journals: list[JournalFile]
    wanted: Packed
    outputs: list[SegmentOutput]
    origin: JobOrigin | None = None
    trusts_heads: bool = False


@dataclass(slots=True)
class StoredDamage:
    """Stored bytes that differ from what was written: their partition, offset, file and
    position."""

    number: int
    offset: int
    path: str
    position: int
    text: str


@dataclass(slots=True)
class Made:
    """A segment that is written and durable. `entries`: packed PartitionEntry, by rising numbers.

    `size_bytes` 0: nothing was kept, so there is no file.
    """

    path: str
    uuid: bytes
    size_bytes: int
    entries: Packed


@dataclass(slots=True)
class JobResult:
    """Result of cut and merge. `made` in the order of the outputs; they contain all partitions but
    those in `damaged`."""

    made: list[Made]
    damaged: list[StoredDamage] = field(default_factory=list)


@dataclass(slots=True)
class Keep:
    """The range of a partition to keep from an input: batches that reach into [from_offset,
    to_offset).

    Batches are never divided. The ranges of one partition in all inputs must be adjacent: the new
    entry covers from the first `from_offset` to the last `to_offset`.
    """

    number: int
    from_offset: int
    to_offset: int
    log_start: int


@dataclass(slots=True)
class Input:
    """A segment to read. `keeps`: packed `Keep`, by rising numbers."""

    path: str
    uuid: bytes
    keeps: Packed


@dataclass(slots=True)
class RewriteArguments:
    """Arguments of a merge. `inputs`: of two with the same partition, the one with the lower
    offsets is first."""

    node_id: int
    created_ms: int
    inputs: list[Input]
    output: SegmentOutput
    origin: JobOrigin | None = None


@dataclass(slots=True)
class SkipArguments:
    """A segment to be written again without its damaged ranges. `path`: its file or a copy of its
    object, empty if there is neither; `entries`: packed PartitionEntry as the metadata has them, by
    rising numbers; `created_ms` is also the time at which the damage was given up."""

    node_id: int
    created_ms: int
    path: str
    entries: Packed
    output: SegmentOutput
    origin: JobOrigin | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets [first, end) of a partition that were left out."""

    number: int
    topic: str
    index: int
    first: int
    end: int


@dataclass(slots=True)
class SkipResult:
    """Result of skip. `lost`: packed Lost, by partition and offset."""

    made: Made
    lost: Packed


@dataclass(slots=True)
class ScrubArguments:
    """The segment to read. `uuid` empty: accept any."""

    path: str
    uuid: bytes = b""


@dataclass(slots=True)
class DamagedRange:
    """Offsets [first, end) of a partition whose batches, the bytes [start, stop) of a segment, are
    not what was written."""

    number: int
    topic: str
    index: int
    first: int
    end: int
    start: int
    stop: int

    @property
    def text(self) -> str:
        return (
            f"offsets {self.first}-{self.end - 1} of {self.topic}-{self.index} are damaged: "
            f"bytes {self.start}-{self.stop - 1}"
        )


@dataclass(slots=True)
class ScrubResult:
    """Result of scrub. `problems`: sentences, at most MAX_PROBLEMS, none if every byte is as it was
    written. `damaged`: the batches among them."""

    size_bytes: int
    problems: list[str]
    damaged: list[DamagedRange] = field(default_factory=list)


def pack(items: Iterable[Any]) -> Packed:
    """Pack items in slices of SLICE each. A caller on the event loop packs one slice at a time and
    yields between them."""
    rest = iter(items)
    return [_dumps(part) for part in iter(lambda: list(islice(rest, SLICE)), [])]


def unpack(packed: bytes) -> list[Any]:
    """Return the items of one slice."""
    items: list[Any] = pickle.loads(packed)
    return items


def unpack_all(packed: Packed) -> Iterator[Any]:
    """Return the items of all slices; not for callers on the event loop."""
    for part in packed:
        yield from unpack(part)


def _dumps(items: Sequence[Any]) -> bytes:
    return pickle.dumps(items, pickle.HIGHEST_PROTOCOL)


def find_job(name: str) -> Job:
    """Return the function of a job. KeyError if there is none of that name."""
    job: Job = import_module(JOBS[name]).run
    return job


def run_job(fs: FileSystem, name: str, arguments: Any, pace: Pace) -> Any:
    """Run a job with the errors of the Worker port: OSError from the disk, WorkerError for all
    others."""
    try:
        return find_job(name)(fs, arguments, pace)
    except OSError:
        raise
    except Exception as failure:
        raise WorkerError(
            f"the job {name!r} failed: {failure or type(failure).__name__}"
        ) from failure


def entries_of(made: Made) -> list[PartitionEntry]:
    return list(unpack_all(made.entries))


def no_pace(_: int) -> None:
    """Do not limit the rate."""
