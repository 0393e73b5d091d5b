"""Store times: from the log to the index files of journals and to segments, and through rewrites.

Covers: kafkawire.codec.segment.stored.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import PartitionState
from kafkawire.codec.segment.stored import (
    Step,
    add_step,
    read_stored,
    select_steps,
    write_stored,
)
from kafkawire.log.io.worker_jobs import Input, Keep, RewriteArguments, pack
from kafkawire.log.journal.index_columns import empty_columns
from kafkawire.log.journal.index_file import Extent, JournalIndex, pack_index
from kafkawire.log.segments.file.open import read_store_times
from tests.kit.env import EPOCH_MS
from tests.kit.log.compaction import keyed
from tests.kit.log.segment_jobs import put, run
from tests.kit.log.segments import FOLDER, Part, batch, everything, output, read, segment, write
from tests.kit.memfs import MemFileSystem
from tests.kit.tier.cold import ColdWorld, simulated
from tests.log.segments.test_compact_job import Shelf, share


def test_steps_round_trip_in_seconds() -> None:
    steps: list[Step] = []
    for at, ms in ((5, 10_700), (6, 10_999), (7, 11_000), (9, 9_000), (2**40, 70_500)):
        add_step(steps, at, ms)
    assert steps == [(5, 10_000), (7, 11_000), (2**40, 70_000)]
    # An offset that is too far from the first keeps the time before.
    assert read_stored(write_stored([(3, steps), (4, steps[:1])])) == {3: steps[:2], 4: steps[:1]}
    body = write_stored([(3, steps)])
    for damaged in (body[:-1], body + b"\0", body[:9], body[:32] + b"\1" + body[33:]):
        with pytest.raises(FormatError):
            read_stored(damaged)


def test_steps_of_range_begin_with_it() -> None:
    steps = [(5, 10), (8, 20), (12, 30)]
    assert select_steps(steps, 9, 12) == [(9, 20)]
    assert select_steps(steps, 8, 13) == [(8, 20), (12, 30)]
    assert select_steps(steps, 0, 6) == [(5, 10)]
    assert select_steps(steps, 9, 9) == []
    assert select_steps([], 0, 9) == []


def test_index_file_with_store_times_hides_them_from_readers_of_rows() -> None:
    columns = empty_columns()
    for column, value in zip(
        (columns.base, columns.log_position, columns.length, columns.count, columns.newest),
        (3, (5 << 32) | 112, 70, 1, 9),
        strict=True,
    ):
        column.append(value)
    steps = [(0, 1000), (4096, 3000)]
    data = pack_index(5, Extent(64, 1, 0, 0), {2: columns}, stored=steps)
    found = JournalIndex(memoryview(data), 5)
    assert data[8] == 3
    assert found.stored == steps
    assert found.numbers() == [2]
    assert 0 not in found
    assert list(found.singles()) == [(2, 3, (5 << 32) | 112, 9, 70, 1)]
    assert found.rows(2).base.tolist() == [3]
    older = pack_index(5, Extent(64, 1, 0, 0), {2: columns})
    assert older[8] == 1
    assert JournalIndex(memoryview(older), 5).stored == []


@pytest.mark.parametrize("end", ["clean", "crash"])
def test_cut_lists_when_batches_were_stored_whatever_their_timestamps(end: str) -> None:
    """After a clean end nothing is forgotten; after a crash the journal's beginning counts."""

    async def main(world: ColdWorld) -> None:
        await world.start()
        for name in ("t", "u"):
            await world.topic(name)
        expected: list[Step] = []
        await world.env.sleep(0.7)
        begun = world.env.clock.now_ms()
        for number in range(6):
            expected.append((number * 3, world.env.clock.now_ms()))
            await world.fill("t", 3)  # their timestamps are EPOCH_MS + offset
            await world.env.sleep(1)  # each in another second
            if number == 2 and end == "clean":
                await world.restart()
            elif number == 2:
                await world.crash(power=False)
                expected = [(0, begun)]
        await world.fill("u", 1)
        await world.cut()
        found: dict[int, list[Step]] = {}
        for each in world.segments():
            found |= read_store_times(world.fs, each.path)
            assert everything(read(world.fs, each.path)).entries[0].max_timestamp < EPOCH_MS + 20
        steps = found[world.find("t").number]
        assert [offset for offset, _ in steps] == [offset for offset, _ in expected]
        for (_, stored_ms), (_, wanted_ms) in zip(steps, expected, strict=True):
            assert abs(stored_ms - wanted_ms) <= 1000
        assert world.find("u").number in found
        assert all(journal.stored == [] for journal in world.log.journals if journal.indexed)

    simulated(main)


def test_merge_keeps_store_times_of_kept_ranges() -> None:
    fs = MemFileSystem()
    fs.makedirs(FOLDER)
    one = PartitionState(stored=[(0, 5_000), (2, 8_000)])
    two = PartitionState(stored=[(4, 8_000), (5, 20_000)])
    paths = [
        put(fs, 1, [Part(3, [batch(at) for at in range(4)], state=one)]),
        put(fs, 2, [Part(3, [batch(at) for at in range(4, 8)], base=4, state=two)]),
    ]
    keeps = (Keep(3, 1, 4, 0), Keep(3, 4, 8, 0))
    inputs = [Input(path, b"", pack([keep])) for path, keep in zip(paths, keeps, strict=True)]
    result = run(fs, "rewrite", RewriteArguments(1, 6, inputs, output(9)))
    wanted = {3: [(1, 5_000), (2, 8_000), (5, 20_000)]}
    assert read_store_times(fs, result.made[0].path) == wanted


def test_cleaning_keeps_store_times() -> None:
    shelf = Shelf()
    one = shelf.write({1: [keyed(0, (b"a", b"1"), (b"b", b"1"))]})
    two = shelf.write({1: [keyed(2, (b"a", b"2"))]})
    for each, steps in ((one[1], [(0, 1_000)]), (two[1], [(2, 9_000)])):
        sound = everything(read(shelf.fs, each.path))
        base = sound.entries[0].base_offset
        part = Part(1, sound.batches[0], base=base, state=PartitionState(stored=steps))
        write(shelf.fs, each.path, segment([part], each.uuid))
    result = shelf.clean(share(one[1], two[1]))
    assert read_store_times(shelf.fs, result.made[0].path) == {1: [(0, 1_000), (2, 9_000)]}
