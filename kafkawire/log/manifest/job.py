"""The job `manifest`: read, compact and summarize the files of a manifest, in the worker.

Input and output are local files: a manifest of a large cluster has a hundred megabytes, too much
for a pipe between the processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import Pace
from kafkawire.log.manifest.summary import Outline, outline
from kafkawire.manifest.fold import GapError, fold
from kafkawire.manifest.format import pack
from kafkawire.manifest.reader import read_object
from kafkawire.manifest.state import Snapshot


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
    """Not synced: it is uploaded, and written again if that fails."""
    file = fs.open(path, create=True)
    try:
        at = 0
        while at < len(data):
            at += file.pwritev([memoryview(data)[at:]], at)
    finally:
        file.close()
    return len(data)
