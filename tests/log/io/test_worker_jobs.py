"""Jobs over segments: their errors, their file handles, encoding of their arguments."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.io.worker_jobs import (
    Input,
    Keep,
    RewriteArguments,
    ScrubArguments,
    SegmentOutput,
    no_pace,
    pack,
    run_job,
    unpack_all,
)
from tests.kit.log import segments
from tests.kit.log.segment_jobs import (
    files_in_memory,  # noqa: F401  (a fixture, by name)
    put,
)
from tests.kit.log.segments import FOLDER, UUID, Part, batch, cutting, journal, wanted
from tests.kit.memfs import MemFileSystem


def next_handle() -> int:
    """The lowest free file descriptor, which is higher if one was leaked."""
    handle = os.open(os.devnull, os.O_RDONLY)
    os.close(handle)
    return handle


def test_failed_job_closes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FOLDER", str(tmp_path))
    disk = DiskFileSystem()
    file = journal(disk, 1, [(3, [batch(0)])])
    path = put(disk, 1, [Part(3, [batch(0)])])
    into = SegmentOutput(path, UUID, [3])
    handles = next_handle()
    for name, job in (
        (
            "cut",
            cutting([file], [wanted(3, 0, 1)], [SegmentOutput(str(tmp_path / "new"), UUID, [4])]),
        ),
        ("cut", cutting([file], [wanted(3, 0, 1)], [into])),
        ("rewrite", RewriteArguments(1, 6, [Input(path, b"", pack([Keep(3, 0, 9, 0)]))], into)),
        ("rewrite", RewriteArguments(1, 6, [Input(path, UUID, [])], into)),
        ("scrub", ScrubArguments(path, UUID)),
    ):
        with suppress(WorkerError, OSError):
            run_job(disk, name, job, no_pace)
        assert next_handle() == handles, name


def test_errors_match_port(fs: MemFileSystem) -> None:
    with pytest.raises(WorkerError, match="'polish' failed"):
        run_job(fs, "polish", None, no_pace)
    with pytest.raises(FileNotFoundError):
        run_job(fs, "scrub", ScrubArguments(f"{FOLDER}/none"), no_pace)
    with pytest.raises(WorkerError, match="'scrub' failed"):
        run_job(fs, "scrub", None, no_pace)


def test_long_lists_are_encoded_in_slices() -> None:
    numbers = list(range(1000))
    packed = pack(numbers)
    assert len(packed) == 4
    assert list(unpack_all(packed)) == numbers
    assert pack([]) == []
