"""The job that cuts journals into segments: segments have the journals' records, and damage is
reported.

Covers: kafkawire.log.segments.cut.job.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.mapped_file import PIECE_BYTES
from kafkawire.log.io.worker_jobs import JobResult, entries_of, find_job
from kafkawire.log.journal.index_file import read_index
from kafkawire.log.segments.file.writer import SYNC_BYTES
from kafkawire.metadata.checkpoint import pack_epochs
from tests.kit.log.segment_jobs import (
    BadDisk,
    files_in_memory,  # noqa: F401  (a fixture, by name)
    run,
    scrub,
)
from tests.kit.log.segments import (
    FOLDER,
    batch,
    cutting,
    everything,
    journal,
    output,
    read,
    wanted,
    write,
)
from tests.kit.memfs import MemFileSystem


def test_cut_sorts_interleaved_partitions(fs: MemFileSystem) -> None:
    one = journal(fs, 1, [(7, [batch(0, 2)]), (3, [batch(10)]), (7, [batch(2), batch(3, 3)])])
    two = journal(fs, 2, [(3, [batch(11, 2)]), (7, [batch(6)]), (9, [batch(0)])])
    state = PartitionState(10, pack_epochs([(3, 0)]), aborted=[Aborted(1, 2, 3)])
    parts = [wanted(7, 0, 7), wanted(3, 10, 13, state), wanted(9, 0, 1)]
    outputs = [output(1, 7), output(2, 9, 3)]
    result = run(fs, "cut", cutting([one, two], parts, outputs))
    assert result.damaged == []
    first, second = (everything(read(fs, made.path)) for made in result.made)
    assert first.batches == [[batch(0, 2), batch(2), batch(3, 3), batch(6)]]
    assert second.batches == [[batch(10), batch(11, 2)], [batch(0)]]
    assert [entry.number for entry in second.entries] == [3, 9]
    assert second.states[3] == replace(state, stored=[(10, 0)])
    assert second.header.node_id == 1
    for made, whole, asked in zip(result.made, (first, second), outputs, strict=True):
        assert entries_of(made) == whole.entries
        assert made.size_bytes == whole.trailer.file_size
        assert made.uuid == asked.uuid == whole.header.uuid
        assert scrub(fs, made.path) == []


def test_cut_segment_is_durable(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0, 2)])])
    made = run(fs, "cut", cutting([file], [wanted(3, 0, 2)], [output(1, 3)])).made[0]
    fs.crash()
    assert everything(read(fs, made.path)).batches == [[batch(0, 2)]]


def test_cut_of_range_has_whole_batches(fs: MemFileSystem) -> None:
    frames = [(3, [batch(n * 2, 2)]) for n in range(10)]
    file = journal(fs, 1, frames)
    made = run(fs, "cut", cutting([file], [wanted(3, 5, 12)], [output(1, 3)])).made[0]
    whole = everything(read(fs, made.path))
    assert whole.batches == [[batch(4, 2), batch(6, 2), batch(8, 2), batch(10, 2)]]
    assert (whole.entries[0].base_offset, whole.entries[0].end_offset) == (5, 12)
    assert whole.indexes[0].block(0)[2] == 4
    assert scrub(fs, made.path) == []


@pytest.mark.parametrize("size", [10, 5000])
def test_cut_of_many_frames(fs: MemFileSystem, size: int) -> None:
    """More than one call accepts, both copied together and kept apart."""
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


def test_journal_without_index_file_is_scanned(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0, 2)]), (4, [batch(5)]), (3, [batch(2)])], index=False)
    result = run(fs, "cut", cutting([file], [wanted(3, 0, 3)], [output(1, 3)]))
    assert everything(read(fs, result.made[0].path)).batches == [[batch(0, 2), batch(2)]]


def damaged_cut(
    fs: MemFileSystem, hurt: Callable[[bytearray, list[int]], None], size: int = 10
) -> JobResult:
    """Cut two partitions of which one was damaged; `hurt` gets the bytes and the positions of its
    frames."""
    file = journal(fs, 1, [(3 + n % 2, [batch(n // 2 * 2, 2, size=size)]) for n in range(8)])
    index = read_index(fs, FOLDER, 1)
    assert index is not None
    log_positions = [log_position & 0xFFFFFFFF for log_position in index.rows(3).log_position]
    data = bytearray(read(fs, file.path))
    hurt(data, log_positions)
    write(fs, file.path, bytes(data))
    parts = [wanted(3, 0, 8), wanted(4, 0, 8)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4)]))
    whole = everything(read(fs, result.made[0].path))
    assert [entry.number for entry in whole.entries] == [4], "the other partition continues"
    assert scrub(fs, result.made[0].path) == []
    return result


@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("at", [-40, -30, 0, 5, 10, 14, 18, 30, 57, 70, 90])
def test_damaged_frame_is_reported_and_skipped(fs: MemFileSystem, at: int, size: int) -> None:
    def hurt(data: bytearray, log_positions: list[int]) -> None:
        data[log_positions[2] + at] ^= 4

    (damage,) = damaged_cut(fs, hurt, size).damaged
    assert (damage.number, damage.offset) == (3, 4)
    index = read_index(fs, FOLDER, 1)
    assert index is not None
    assert damage.position == index.rows(3).log_position[2] & 0xFFFFFFFF
    assert damage.path.endswith("0000000001.journal")
    assert "journal 1" in damage.text


def test_every_flipped_bit_of_batch_is_found_by_cut(fs: MemFileSystem) -> None:
    rng = random.Random(2)
    for at in range(-40, len(batch(0, 2))):
        fs.remove(output(1).path)

        def hurt(data: bytearray, log_positions: list[int], at: int = at) -> None:
            data[log_positions[1] + at] ^= 1 << rng.randrange(8)

        fs.remove(f"{FOLDER}/0000000001.journal")
        assert [damage.offset for damage in damaged_cut(fs, hurt).damaged] == [2]


def test_missing_offsets_are_damage(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)]), (3, [batch(2)]), (4, [batch(0)]), (5, [batch(4)])])
    parts = [wanted(3, 0, 3), wanted(4, 0, 2), wanted(5, 3, 5), wanted(6, 0, 1)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4, 5, 6)]))
    assert {damage.number: damage.offset for damage in result.damaged} == {3: 1, 4: 1, 5: 3, 6: 0}
    assert (result.made[0].size_bytes, result.made[0].entries) == (0, [])
    assert output(1).path not in fs.files


def test_large_partition_can_be_rolled_back(fs: MemFileSystem) -> None:
    """It was partly written already when its last frame turns out damaged."""
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


def test_unreadable_bytes_are_skipped() -> None:
    fs = BadDisk()
    fs.makedirs(FOLDER)
    frames = [(3, [batch(n, size=100_000)]) for n in range(4)]
    file = journal(fs, 1, [*frames, *[(4, [batch(n, size=100_000)]) for n in range(20)]])
    fs.bad = range(150_000, 150_001)
    parts = [wanted(3, 0, 4), wanted(4, 0, 20)]
    result = run(fs, "cut", cutting([file], parts, [output(1, 3, 4)]))
    assert [(damage.number, damage.offset) for damage in result.damaged] == [(3, 1)]
    assert len(everything(read(fs, result.made[0].path)).batches[0]) == 20


def test_truncated_journal_fails_job(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)])])
    write(fs, file.path, read(fs, file.path)[: file.end - 1])
    with pytest.raises(OSError, match="should have") as caught:
        run(fs, "cut", cutting([file], [wanted(3, 0, 1)], [output(1, 3)]))
    assert caught.value.filename == file.path


@pytest.mark.parametrize("fault", ["failing_writes", "failing_syncs", "short_writes", "room_bytes"])
def test_failing_disk_fails_job(fs: MemFileSystem, fault: str) -> None:
    file = journal(fs, 1, [(3, [batch(0)])])
    setattr(fs.faults, fault, 1)
    with pytest.raises(OSError, match=r".+"):
        run(fs, "cut", cutting([file], [wanted(3, 0, 1)], [output(1, 3)]))


class PowerCut(BaseException):
    """The process was ended here."""


@pytest.mark.parametrize("seed", range(20))
def test_power_failure_leaves_no_complete_looking_segment(seed: int) -> None:
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


def test_existing_file_is_not_overwritten(fs: MemFileSystem) -> None:
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
