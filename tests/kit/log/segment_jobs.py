"""Run jobs over segments in the test process, on files in memory or on a failing disk."""

from __future__ import annotations

import errno

import pytest

from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import JobResult, ScrubArguments, ScrubResult, find_job, no_pace
from kafkawire.log.segments.file.open import segment_path
from tests.kit.log import segments
from tests.kit.log.segments import FOLDER, Part, segment, write
from tests.kit.memfs import MemFileSystem


@pytest.fixture(name="fs")
def files_in_memory() -> MemFileSystem:
    made = MemFileSystem()
    made.makedirs(FOLDER)
    return made


def run(fs: MemFileSystem, name: str, arguments: object) -> JobResult:
    result: JobResult = find_job(name)(fs, arguments, no_pace)
    return result


def scrub(fs: MemFileSystem, path: str) -> list[str]:
    result: ScrubResult = find_job("scrub")(fs, ScrubArguments(path), no_pace)
    return result.problems


class BadDisk(MemFileSystem):
    """A disk on which reads of the `bad` bytes of files that end with `name` fail."""

    name, bad = "journal", range(0)

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create)
        pread = file.pread

        def failing(length: int, position: int) -> bytes:
            if path.endswith(self.name) and any(
                at in range(position, position + length) for at in self.bad
            ):
                raise OSError(errno.EIO, "input/output error")
            return pread(length, position)

        file.pread = failing  # type: ignore[method-assign]
        return file


def put(fs: FileSystem, name: int, parts: list[Part]) -> str:
    uuid = bytes([name]) * 16
    path = segment_path(segments.FOLDER, uuid)
    write(fs, path, segment(parts, uuid))
    return path
