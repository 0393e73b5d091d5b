"""The job that reads a whole segment: any damage is found and reported, and it continues."""

from __future__ import annotations

import random

import pytest

from kafkawire.codec.segment.format import HEADER_BYTES
from kafkawire.log.io.worker_jobs import ScrubArguments, find_job, no_pace
from kafkawire.log.segments.file import verify as scrubbing
from tests.kit.log.segment_jobs import (
    BadDisk,
    files_in_memory,  # noqa: F401  (a fixture, by name)
    put,
    scrub,
)
from tests.kit.log.segments import FOLDER, UUID, Part, batch, everything, read, write
from tests.kit.memfs import MemFileSystem


def test_scrub_reports_any_flipped_bit(fs: MemFileSystem) -> None:
    rng = random.Random(3)
    batches = [batch(n, size=10) for n in range(3)]
    path = put(fs, 1, [Part(3, batches), Part(4, [batch(7, 2)], base=7)])
    data = read(fs, path)
    whole = everything(data)
    assert scrub(fs, path) == []
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= 1 << rng.randrange(8)
        write(fs, path, bytes(hurt))
        problems = scrub(fs, path)
        assert problems, at
        assert all(path in problem for problem in problems)
        for entry in whole.entries:
            if entry.start <= at < entry.start + entry.length:
                assert f" of {entry.topic}-2 are damaged" in problems[0]
        for section in whole.trailer.sections:
            if section.start <= at < section.stop:
                assert section.name in problems[0]


def test_scrub_reports_position_and_continues(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(n, size=5000) for n in range(40)])])
    data = bytearray(read(fs, path))
    index = everything(bytes(data)).indexes[0]
    for block in (3, 30):
        data[index.block(block)[0] + 100] ^= 1
    data[index.block(20)[0] + 14] ^= 1
    write(fs, path, bytes(data))
    problems = scrub(fs, path)
    assert len(problems) == 3
    for block, problem in zip((3, 20, 30), problems, strict=True):
        assert str(index.block(block)[0]) in problem
        assert f"offsets {block}-{block} of t3-2 are damaged" in problem


def test_scrub_stops_after_much_damage(fs: MemFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(fs, 1, [Part(3, [batch(n, size=5000) for n in range(300)])])
    data = bytearray(read(fs, path))
    for index in range(0, 300, 2):
        data[HEADER_BYTES + index * len(batch(0, size=5000)) + 100] ^= 1
    write(fs, path, bytes(data))
    monkeypatch.setattr(scrubbing, "MAX_PROBLEMS", 100)
    assert len(scrub(fs, path)) == 100


def test_scrub_reports_unreadable_bytes() -> None:
    fs = BadDisk()
    fs.name = "segment"
    fs.makedirs(FOLDER)
    path = put(fs, 1, [Part(3, [batch(n, size=5000) for n in range(40)])])
    fs.bad = range(70_000, 70_001)
    problems = scrub(fs, path)
    assert len(problems) == 2
    assert "the disk cannot read bytes" in problems[0]
    assert problems[1].endswith("offsets 12-25 of t3-2 are damaged: bytes 60916-131909")


def test_scrub_of_wrong_or_missing_segment(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    asked = ScrubArguments(path, UUID)
    assert "it is the segment 0101" in find_job("scrub")(fs, asked, no_pace).problems[0]
    write(fs, path, b"")
    assert "header" in scrub(fs, path)[0]
    with pytest.raises(FileNotFoundError):
        scrub(fs, path + "x")
