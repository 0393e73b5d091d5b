"""The job that merges several segments into one: dead ranges are dropped, batches kept, damage
reported.

Covers: kafkawire.log.segments.merge.job, kafkawire.log.segments.merge.merger.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.io.worker_jobs import (
    Input,
    Keep,
    RewriteArguments,
    entries_of,
    no_pace,
    pack,
    run_job,
)
from kafkawire.metadata.checkpoint import pack_epochs
from tests.kit.log.segment_jobs import (
    files_in_memory,  # noqa: F401  (a fixture, by name)
    put,
    run,
    scrub,
)
from tests.kit.log.segments import Part, batch, everything, output, read, write
from tests.kit.memfs import MemFileSystem


def rewriting(inputs: list[tuple[str, list[Keep]]]) -> RewriteArguments:
    return RewriteArguments(
        1, 6, [Input(path, b"", pack(keeps)) for path, keeps in inputs], output(9)
    )


def test_small_segments_are_merged(fs: MemFileSystem) -> None:
    old = PartitionState(2, pack_epochs([(0, 0)]), aborted=[Aborted(1, 0, 1), Aborted(1, 2, 6)])
    new = PartitionState(2, pack_epochs([(0, 0), (1, 8)]), aborted=[Aborted(2, 8, 9)])
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
    assert whole.states[3] == PartitionState(
        4, new.leader_epochs, aborted=[Aborted(1, 2, 6), Aborted(2, 8, 9)]
    )
    assert scrub(fs, made.path) == []
    assert entries_of(made) == whole.entries


@pytest.mark.parametrize("size", [10, 3000, 9000])
def test_dead_ranges_are_dropped_and_batches_kept_whole(fs: MemFileSystem, size: int) -> None:
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


def test_range_ending_within_batch_is_refused(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0, 4), batch(4, 4)])])
    with pytest.raises(WorkerError, match="within a batch"):
        run_job(fs, "rewrite", rewriting([(path, [Keep(3, 0, 6, 0)])]), no_pace)


def test_ranges_must_exist_and_be_contiguous(fs: MemFileSystem) -> None:
    one = put(fs, 1, [Part(3, [batch(0), batch(1)])])
    two = put(fs, 2, [Part(3, [batch(2)], base=2)])
    cases = [
        ([(one, [Keep(3, 0, 1, 0)]), (two, [Keep(3, 2, 3, 0)])], "do not join"),
        ([(one, [Keep(3, 0, 3, 0)])], "which has 0-2"),
        ([(one, [Keep(4, 0, 1, 0)])], "holds no records of partition 4"),
    ]
    for keeps, said in cases:
        with pytest.raises(WorkerError, match=said):
            run_job(fs, "rewrite", rewriting(keeps), no_pace)
    assert output(9).path not in fs.files


def test_rewrite_reports_damage_and_continues(fs: MemFileSystem) -> None:
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


def test_input_that_is_not_a_segment_fails_job(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data = bytearray(read(fs, path))
    data[-100] ^= 1
    write(fs, path, bytes(data))
    with pytest.raises(WorkerError, match="its section table is damaged"):
        run_job(fs, "rewrite", rewriting([(path, [Keep(3, 0, 1, 0)])]), no_pace)
