"""The jobs over files in memory: what is cut is what was there, and damage is named."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.segment import FormatError, PartitionState
from kafkawire.metadata.checkpoint import pack_epochs
from log.disk import DiskFileSystem
from log.env import FileSystem, WorkerError
from log.journalindex import read_index
from log.segments.files import PIECE_BYTES, SegmentFile, check_file, segment_path
from log.segments.jobs import (
    Input,
    JobResult,
    Keep,
    Output,
    RewriteArguments,
    ScrubArguments,
    ScrubResult,
    entries_of,
    find_job,
    no_pace,
    pack,
    run_job,
    unpack_all,
)
from log.segments.writing import SYNC_BYTES
from offsets.storage import SegmentRow
from tests.kit import segments
from tests.kit.memfs import MemFileSystem
from tests.kit.segments import (
    FOLDER,
    UUID,
    Part,
    batch,
    cutting,
    everything,
    journal,
    output,
    read,
    segment,
    wanted,
    write,
)


@pytest.fixture
def fs() -> MemFileSystem:
    made = MemFileSystem()
    made.makedirs(FOLDER)
    return made


def run(fs: MemFileSystem, name: str, arguments: object) -> JobResult:
    result: JobResult = find_job(name)(fs, arguments, no_pace)
    return result


def scrub(fs: MemFileSystem, path: str) -> list[str]:
    result: ScrubResult = find_job("scrub")(fs, ScrubArguments(path), no_pace)
    return result.problems


# Cutting


def test_a_cut_sorts_what_journals_have_interleaved(fs: MemFileSystem) -> None:
    one = journal(fs, 1, [(7, [batch(0, 2)]), (3, [batch(10)]), (7, [batch(2), batch(3, 3)])])
    two = journal(fs, 2, [(3, [batch(11, 2)]), (7, [batch(6)]), (9, [batch(0)])])
    state = PartitionState(10, pack_epochs([(3, 0)]), aborted=[(1, 2, 3)])
    parts = [wanted(7, 0, 7), wanted(3, 10, 13, state), wanted(9, 0, 1)]
    outputs = [output(1, 7), output(2, 9, 3)]
    result = run(fs, "cut", cutting([one, two], parts, outputs))
    assert result.damaged == []
    first, second = (everything(read(fs, made.path)) for made in result.made)
    assert first.batches == [[batch(0, 2), batch(2), batch(3, 3), batch(6)]]
    assert second.batches == [[batch(10), batch(11, 2)], [batch(0)]]
    assert [entry.number for entry in second.entries] == [3, 9]
    assert second.states[3] == state
    assert second.header.node_id == 1
    for made, whole, asked in zip(result.made, (first, second), outputs, strict=True):
        assert entries_of(made) == whole.entries
        assert made.size_bytes == whole.trailer.file_size
        assert made.uuid == asked.uuid == whole.header.uuid
        assert scrub(fs, made.path) == []


def test_what_a_cut_wrote_is_durable(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0, 2)])])
    made = run(fs, "cut", cutting([file], [wanted(3, 0, 2)], [output(1, 3)])).made[0]
    fs.crash()
    assert everything(read(fs, made.path)).batches == [[batch(0, 2)]]


def test_a_cut_takes_a_range_and_whole_batches(fs: MemFileSystem) -> None:
    frames = [(3, [batch(n * 2, 2)]) for n in range(10)]
    file = journal(fs, 1, frames)
    made = run(fs, "cut", cutting([file], [wanted(3, 5, 12)], [output(1, 3)])).made[0]
    whole = everything(read(fs, made.path))
    assert whole.batches == [[batch(4, 2), batch(6, 2), batch(8, 2), batch(10, 2)]]
    assert (whole.entries[0].base_offset, whole.entries[0].end_offset) == (5, 12)
    assert whole.indexes[0].block(0)[2] == 4
    assert scrub(fs, made.path) == []


@pytest.mark.parametrize("size", [10, 5000])
def test_many_frames(fs: MemFileSystem, size: int) -> None:
    """More than one call takes, both copied together and kept apart."""
    frames = [(3 + n % 2, [batch(n // 2, size=size)]) for n in range(2500)]
    files = [journal(fs, 1, frames[:1300]), journal(fs, 2, frames[1300:])]
    parts = [wanted(3, 0, 1250), wanted(4, 0, 1250)]
    made = run(fs, "cut", cutting(files, parts, [output(1, 3, 4)])).made[0]
    whole = everything(read(fs, made.path))
    assert [b"".join(inside) for inside in whole.batches] == [
        b"".join(batches[0] for number, batches in frames if number == wanted_number)
        for wanted_number in (3, 4)
    ]
    assert scrub(fs, made.path) == []


def test_without_an_index_file_the_journal_is_scanned(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0, 2)]), (4, [batch(5)]), (3, [batch(2)])], index=False)
    result = run(fs, "cut", cutting([file], [wanted(3, 0, 3)], [output(1, 3)]))
    assert everything(read(fs, result.made[0].path)).batches == [[batch(0, 2), batch(2)]]


def damaged_cut(
    fs: MemFileSystem, hurt: Callable[[bytearray, list[int]], None], size: int = 10
) -> JobResult:
    """Cut two partitions of which one was hurt; `hurt` gets the bytes and where its frames are."""
    file = journal(fs, 1, [(3 + n % 2, [batch(n // 2 * 2, 2, size=size)]) for n in range(8)])
    index = read_index(fs, FOLDER, 1)
    assert index is not None
    places = [place & 0xFFFFFFFF for place in index.rows(3).place]
    data = bytearray(read(fs, file.path))
    hurt(data, places)
    write(fs, file.path, bytes(data))
    parts = [wanted(3, 0, 8), wanted(4, 0, 8)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4)]))
    whole = everything(read(fs, result.made[0].path))
    assert [entry.number for entry in whole.entries] == [4], "the other partition goes on"
    assert scrub(fs, result.made[0].path) == []
    return result


@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("at", [-40, -30, 0, 5, 10, 14, 18, 30, 57, 70, 90])
def test_a_damaged_frame_is_named_and_left_out(fs: MemFileSystem, at: int, size: int) -> None:
    def hurt(data: bytearray, places: list[int]) -> None:
        data[places[2] + at] ^= 4

    (damage,) = damaged_cut(fs, hurt, size).damaged
    assert (damage.number, damage.offset) == (3, 4)
    index = read_index(fs, FOLDER, 1)
    assert index is not None
    assert damage.position == index.rows(3).place[2] & 0xFFFFFFFF
    assert damage.path.endswith("0000000001.journal")
    assert "journal 1" in damage.text


def test_every_flipped_bit_of_a_batch_is_found_by_the_cut(fs: MemFileSystem) -> None:
    rng = random.Random(2)
    for at in range(-40, len(batch(0, 2))):
        fs.remove(output(1).path)

        def hurt(data: bytearray, places: list[int], at: int = at) -> None:
            data[places[1] + at] ^= 1 << rng.randrange(8)

        fs.remove(f"{FOLDER}/0000000001.journal")
        assert [damage.offset for damage in damaged_cut(fs, hurt).damaged] == [2]


def test_missing_offsets_are_damage(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)]), (3, [batch(2)]), (4, [batch(0)]), (5, [batch(4)])])
    parts = [wanted(3, 0, 3), wanted(4, 0, 2), wanted(5, 3, 5), wanted(6, 0, 1)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4, 5, 6)]))
    assert {damage.number: damage.offset for damage in result.damaged} == {3: 1, 4: 1, 5: 3, 6: 0}
    assert (result.made[0].size_bytes, result.made[0].entries) == (0, [])
    assert output(1).path not in fs.files


def test_a_large_partition_can_be_taken_back(fs: MemFileSystem) -> None:
    """It was written in part already when its last frame turns out bad."""
    many = [(3, [batch(n, size=60_000)]) for n in range(SYNC_BYTES // 60_000 + 20)]
    file = journal(fs, 1, [*many, (4, [batch(0)])])
    data = bytearray(read(fs, file.path))
    data[file.end - 400] ^= 1
    write(fs, file.path, bytes(data))
    parts = [wanted(3, 0, len(many)), wanted(4, 0, 1)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4)]))
    assert [damage.offset for damage in result.damaged] == [len(many) - 1]
    data = bytearray(read(fs, result.made[0].path))
    assert everything(bytes(data)).batches == [[batch(0)]]


class BadDisk(MemFileSystem):
    """Reads that touch `bad` bytes of files that end with `name` fail."""

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


def test_what_the_disk_cannot_read_is_left_out() -> None:
    fs = BadDisk()
    fs.makedirs(FOLDER)
    frames = [(3, [batch(n, size=100_000)]) for n in range(4)]
    file = journal(fs, 1, [*frames, *[(4, [batch(n, size=100_000)]) for n in range(20)]])
    fs.bad = range(150_000, 150_001)
    parts = [wanted(3, 0, 4), wanted(4, 0, 20)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4)]))
    assert [(damage.number, damage.offset) for damage in result.damaged] == [(3, 1)]
    assert len(everything(read(fs, result.made[0].path)).batches[0]) == 20


def test_a_journal_that_was_cut_short_fails_the_job(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)])])
    write(fs, file.path, read(fs, file.path)[: file.end - 1])
    with pytest.raises(OSError, match="should have") as caught:
        run(fs, "cut", cutting([file], [wanted(3, 0, 1)], [output(1, 3)]))
    assert caught.value.filename == file.path


@pytest.mark.parametrize("fault", ["failing_writes", "failing_syncs", "short_writes", "room_bytes"])
def test_a_failing_disk_fails_the_job(fs: MemFileSystem, fault: str) -> None:
    file = journal(fs, 1, [(3, [batch(0)])])
    setattr(fs.faults, fault, 1)
    with pytest.raises(OSError, match=r".+"):
        run(fs, "cut", cutting([file], [wanted(3, 0, 1)], [output(1, 3)]))


class PowerCut(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_leaves_no_segment_that_looks_whole(seed: int) -> None:
    rng = random.Random(seed)
    left = [rng.randrange(1, 5)]

    def pause(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise PowerCut

    fs = MemFileSystem(rng)
    fs.makedirs(FOLDER)
    frames = [(3, [batch(n, size=rng.choice([100, 60_000]))]) for n in range(400)]
    file = journal(fs, 1, frames)
    fs.sync_dir(FOLDER)
    fs.pause = pause
    with suppress(PowerCut):
        run(fs, "cut", cutting([file], [wanted(3, 0, 400)], [output(1, 3)]))
    fs.pause = lambda _: None
    fs.crash()
    if output(1).path not in fs.files:
        return
    if not scrub(fs, output(1).path):
        whole = everything(read(fs, output(1).path))
        assert whole.batches == [[inside[0] for _, inside in frames]]


def next_handle() -> int:
    """The lowest that is free: higher once one is not given back."""
    handle = os.open(os.devnull, os.O_RDONLY)
    os.close(handle)
    return handle


def test_a_failed_job_gives_its_handles_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "FOLDER", str(tmp_path))
    disk = DiskFileSystem()
    file = journal(disk, 1, [(3, [batch(0)])])
    path = put(disk, 1, [Part(3, [batch(0)])])
    into = Output(path, UUID, [3])
    handles = next_handle()
    for name, job in (
        ("cut", cutting([file], [wanted(3, 0, 1)], [Output(str(tmp_path / "new"), UUID, [4])])),
        ("cut", cutting([file], [wanted(3, 0, 1)], [into])),
        ("rewrite", RewriteArguments(1, 6, [Input(path, b"", pack([Keep(3, 0, 9, 0)]))], into)),
        ("rewrite", RewriteArguments(1, 6, [Input(path, UUID, [])], into)),
        ("scrub", ScrubArguments(path, UUID)),
    ):
        with suppress(WorkerError, OSError):
            run_job(disk, name, job, no_pace)
        assert next_handle() == handles, name


def test_a_file_that_is_there_is_not_written_over(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)])])
    job = cutting([file], [wanted(3, 0, 1)], [output(1, 3)])
    run(fs, "cut", job)
    with pytest.raises(FileExistsError):
        run(fs, "cut", job)


def test_read_bytes_are_counted(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(n, size=9000)]) for n in range(400)])
    counted: list[int] = []
    job = cutting([file], [wanted(3, 0, 400)], [output(1, 3)])
    find_job("cut")(fs, job, counted.append)
    assert sum(counted) == file.end
    assert max(counted) <= PIECE_BYTES


# Rewriting


def put(fs: FileSystem, name: int, parts: list[Part]) -> str:
    uuid = bytes([name]) * 16
    path = segment_path(segments.FOLDER, uuid)
    write(fs, path, segment(parts, uuid))
    return path


def rewriting(inputs: list[tuple[str, list[Keep]]]) -> RewriteArguments:
    return RewriteArguments(
        1, 6, [Input(path, b"", pack(keeps)) for path, keeps in inputs], output(9)
    )


def test_small_segments_become_one(fs: MemFileSystem) -> None:
    old = PartitionState(2, pack_epochs([(0, 0)]), aborted=[(1, 0, 1), (1, 2, 6)])
    new = PartitionState(2, pack_epochs([(0, 0), (1, 8)]), aborted=[(2, 8, 9)])
    one = put(fs, 1, [Part(3, [batch(0, 4), batch(4, 4)], state=old), Part(4, [batch(0)])])
    two = put(fs, 2, [Part(3, [batch(8), batch(9)], base=8, state=new), Part(8, [], 5, 6)])
    keeps = [
        (one, [Keep(3, 4, 8, 4), Keep(4, 0, 1, 0)]),
        (two, [Keep(3, 8, 10, 4), Keep(8, 5, 6, 0)]),
    ]
    result = run(fs, "rewrite", rewriting(keeps))
    assert result.damaged == []
    made = result.made[0]
    whole = everything(read(fs, made.path))
    assert whole.batches == [[batch(4, 4), batch(8), batch(9)], [batch(0)], []]
    assert [(e.number, e.base_offset, e.end_offset) for e in whole.entries] == [
        (3, 4, 10), (4, 0, 1), (8, 5, 6),
    ]  # fmt: skip
    assert whole.states[3] == PartitionState(4, new.leader_epochs, aborted=[(1, 2, 6), (2, 8, 9)])
    assert scrub(fs, made.path) == []
    assert entries_of(made) == whole.entries


@pytest.mark.parametrize("size", [10, 3000, 9000])
def test_dead_ranges_go_and_batches_stay_whole(fs: MemFileSystem, size: int) -> None:
    batches = [batch(n * 3, 2, size=size) for n in range(40)]  # compaction left gaps
    path = put(fs, 1, [Part(3, batches, end=125)])
    for start, stop in (
        (0, 125),
        (1, 125),
        (2, 60),
        (59, 60),
        (60, 62),
        (119, 125),
        (124, 125),
        (7, 7),
    ):
        fs.remove(output(9).path)
        made = run(fs, "rewrite", rewriting([(path, [Keep(3, start, stop, start)])])).made[0]
        whole = everything(read(fs, made.path))
        kept = [one for n, one in enumerate(batches) if n * 3 + 1 >= start and n * 3 < stop > start]
        assert whole.batches == [kept], (start, stop)
        assert (whole.entries[0].base_offset, whole.entries[0].end_offset) == (start, stop)
        assert scrub(fs, made.path) == []


def test_a_range_that_ends_within_a_batch_is_refused(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0, 4), batch(4, 4)])])
    with pytest.raises(WorkerError, match="within a batch"):
        run_job(fs, "rewrite", rewriting([(path, [Keep(3, 0, 6, 0)])]), no_pace)


def test_ranges_must_be_there_and_join(fs: MemFileSystem) -> None:
    one = put(fs, 1, [Part(3, [batch(0), batch(1)])])
    two = put(fs, 2, [Part(3, [batch(2)], base=2)])
    cases = [
        ([(one, [Keep(3, 0, 1, 0)]), (two, [Keep(3, 2, 3, 0)])], "do not join"),
        ([(one, [Keep(3, 0, 3, 0)])], "which has 0-2"),
        ([(one, [Keep(4, 0, 1, 0)])], "has nothing of partition 4"),
    ]
    for keeps, said in cases:
        with pytest.raises(WorkerError, match=said):
            run_job(fs, "rewrite", rewriting(keeps), no_pace)
    assert output(9).path not in fs.files


def test_a_rewrite_names_damage_and_goes_on(fs: MemFileSystem) -> None:
    batches = [batch(n, size=2000) for n in range(20)]
    path = put(fs, 1, [Part(3, batches), Part(4, [batch(0)])])
    entry = everything(read(fs, path)).entries[0]
    keeps = rewriting([(path, [Keep(3, 0, 20, 0), Keep(4, 0, 1, 0)])])
    data = bytearray(read(fs, path))
    for at in (entry.start + 12, entry.start + 3000, entry.index_start + 3):
        hurt = bytearray(data)
        hurt[at] ^= 1
        write(fs, path, bytes(hurt))
        fs.remove(output(9).path)
        result = run(fs, "rewrite", keeps)
        assert [damage.number for damage in result.damaged] == [3]
        assert everything(read(fs, result.made[0].path)).batches == [[batch(0)]]


def test_an_input_that_is_no_segment_fails_the_job(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data = bytearray(read(fs, path))
    data[-100] ^= 1
    write(fs, path, bytes(data))
    with pytest.raises(WorkerError, match="its section table is damaged"):
        run_job(fs, "rewrite", rewriting([(path, [Keep(3, 0, 1, 0)])]), no_pace)


# Scrubbing


def test_scrub_finds_and_names_any_flipped_bit(fs: MemFileSystem) -> None:
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
                assert f"{entry.topic}-2 (partition {entry.number})" in problems[0]
        for section in whole.trailer.sections:
            if section.start <= at < section.stop:
                assert section.name in problems[0]


def test_scrub_says_where_and_goes_on(fs: MemFileSystem) -> None:
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
        assert f"offset {block} " in problem


def test_scrub_of_much_damage_ends(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(n, size=5000) for n in range(300)])])
    data = bytearray(read(fs, path))
    for at in range(2000, 1_400_000, 4000):
        data[at] ^= 1
    write(fs, path, bytes(data))
    assert len(scrub(fs, path)) == 100


def test_scrub_names_what_the_disk_cannot_read() -> None:
    fs = BadDisk()
    fs.name = "segment"
    fs.makedirs(FOLDER)
    path = put(fs, 1, [Part(3, [batch(n, size=5000) for n in range(40)])])
    fs.bad = range(70_000, 70_001)
    problems = scrub(fs, path)
    assert len(problems) == 1
    assert "the disk cannot read bytes" in problems[0]


def test_scrub_of_another_segment_or_of_none(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    asked = ScrubArguments(path, UUID)
    assert "it is the segment 0101" in find_job("scrub")(fs, asked, no_pace).problems[0]
    write(fs, path, b"")
    assert "header" in scrub(fs, path)[0]
    with pytest.raises(FileNotFoundError):
        scrub(fs, path + "x")


# Opening


def row(uuid: bytes, size: int) -> SegmentRow:
    return SegmentRow(uuid, 1, 0, size_bytes=size)


def test_a_segment_is_checked_when_it_is_opened(
    fs: MemFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data, uuid = read(fs, path), bytes([1]) * 16
    check_file(fs, path, row(uuid, len(data))).close()
    assert caplog.records == []
    with pytest.raises(KafkaError, match=r"0101.*its row says"):
        check_file(fs, path, row(uuid, len(data) - 1))
    with pytest.raises(KafkaError, match="it is the segment"):
        check_file(fs, path, row(UUID, len(data)))
    write(fs, path, data[:64] + segment([Part(3, [batch(0)])], UUID)[64:])
    with pytest.raises(KafkaError, match="of two segments"):
        check_file(fs, path, row(uuid, len(data)))
    with pytest.raises(FileNotFoundError):
        check_file(fs, path + "x", row(uuid, len(data)))


def test_damage_beside_the_batches_is_named_and_stops_nobody(
    fs: MemFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data, uuid = read(fs, path), bytes([1]) * 16
    trailer = everything(data).trailer
    places = [(section.start + 1, section.name) for section in trailer.sections]
    for at, name in [*places, (20, "header"), (len(data) - 50, "trailer"), (len(data) - 100, "")]:
        hurt = bytearray(data)
        hurt[at] ^= 1
        write(fs, path, bytes(hurt))
        caplog.clear()
        check_file(fs, path, row(uuid, len(data))).close()
        (said,) = caplog.records
        assert said.levelname == "CRITICAL"
        assert uuid.hex() in said.getMessage()
        assert f"its {name}" in said.getMessage()


def test_a_newer_segment_is_not_served(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data = bytearray(read(fs, path))
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, 12, crc32c(data[16:64], crc32c(data[:12])))
    write(fs, path, bytes(data))
    with pytest.raises(KafkaError, match="start the newer version that wrote it"):
        check_file(fs, path, row(bytes([1]) * 16, len(data)))


def test_header_and_trailer_must_be_of_one_segment(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    other = segment([Part(3, [batch(0)])], UUID)
    write(fs, path, read(fs, path)[:64] + other[64:])
    with pytest.raises(FormatError, match="of two segments"):
        SegmentFile(fs, path)


# Plumbing


def test_errors_are_those_of_the_port(fs: MemFileSystem) -> None:
    with pytest.raises(WorkerError, match="'polish' failed"):
        run_job(fs, "polish", None, no_pace)
    with pytest.raises(FileNotFoundError):
        run_job(fs, "scrub", ScrubArguments(f"{FOLDER}/none"), no_pace)
    with pytest.raises(WorkerError, match="'scrub' failed"):
        run_job(fs, "scrub", None, no_pace)


def test_long_lists_are_packed_in_slices() -> None:
    numbers = list(range(1000))
    packed = pack(numbers)
    assert len(packed) == 4
    assert list(unpack_all(packed)) == numbers
    assert pack([]) == []
