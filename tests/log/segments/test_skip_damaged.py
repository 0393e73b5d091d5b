"""The job that skips damaged batches, and its account, which later jobs keep.

Covers: kafkawire.log.segments.skip.job, kafkawire.log.segments.skip.job.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import HEAD_BYTES, TRANSACTIONAL, build, empty_batches, iter_batches
from kafkawire.codec.control import ABORT, COMMIT, Aborted, pack_marker
from kafkawire.codec.damage import BadBatches
from kafkawire.codec.segment.format import LostRange, PartitionState
from kafkawire.log.io.worker_jobs import (
    Input,
    Keep,
    Lost,
    RewriteArguments,
    SkipArguments,
    SkipResult,
    find_job,
    no_pace,
    pack,
    unpack_all,
)
from kafkawire.log.segments.file.open import read_lost_ranges
from kafkawire.log.segments.skip.job import Outcomes
from tests.kit.log.compaction import keyed
from tests.kit.log.segment_jobs import (
    BadDisk,
    files_in_memory,  # noqa: F401  (a fixture, by name)
    put,
    run,
    scrub,
)
from tests.kit.log.segments import FOLDER, Part, batch, everything, output, read, segment, write
from tests.kit.memfs import MemFileSystem
from tests.log.segments.test_compact_job import Shelf, share

NOW = 77
GAPS = (44, 48), (90, 92)


def skip(fs: MemFileSystem, path: str, sound: bytes, name: int = 9) -> tuple[str, list[Lost]]:
    """Where the segment of `path` went, whose rows are those of `sound`; what it has lost."""
    entries = pack(everything(sound).entries)
    arguments = SkipArguments(1, NOW, path, entries, output(name))
    result: SkipResult = find_job("skip")(fs, arguments, no_pace)
    if isinstance(fs, BadDisk):
        fs.bad = range(0)
    assert scrub(fs, result.made.path) == []
    return result.made.path, list(unpack_all(result.lost))


def flip_bits(fs: MemFileSystem, path: str, *log_positions: int) -> bytes:
    """Flip bits; return the bytes before."""
    sound = read(fs, path)
    data = bytearray(sound)
    for at in log_positions:
        data[at] ^= 8
    write(fs, path, bytes(data))
    return sound


def test_only_damaged_batches_are_skipped(fs: MemFileSystem) -> None:
    batches = [batch(at * 2, 2, size=300) for at in range(60)]
    path = put(fs, 1, [Part(3, batches), Part(4, [batch(7)], base=7)])
    size = len(batches[0])
    sound = flip_bits(fs, path, 64 + size * 22 + 100, 64 + size * 23 + 100, 64 + size * 45 + 100)
    made, lost = skip(fs, path, sound)
    assert lost == [Lost(3, "t3", 2, 44, 48), Lost(3, "t3", 2, 90, 92)]
    whole = everything(read(fs, made))
    gaps = [bytes(empty_batches(first, end)) for first, end in GAPS]
    kept = [*batches[:22], gaps[0], *batches[24:45], gaps[1], *batches[46:]]
    assert whole.batches == [kept, [batch(7)]]
    assert whole.entries[0].records == 114
    assert read_lost_ranges(fs, made) == {3: [LostRange(*each, NOW, 1) for each in GAPS]}


@pytest.mark.parametrize("what", ["trailer", "directory", "index", "state"])
def test_damage_outside_batches_skips_no_batch(fs: MemFileSystem, what: str) -> None:
    state = PartitionState(1, aborted=[Aborted(5, 1, 2)])
    path = put(fs, 1, [Part(3, [batch(at) for at in range(9)], state=state)])
    trailer = everything(read(fs, path)).trailer
    starts = {section.name: section.body_start for section in trailer.sections}
    sound = flip_bits(fs, path, starts.get(what, len(read(fs, path)) - 20) + 10)
    made, lost = skip(fs, path, sound)
    assert lost == []
    whole = everything(read(fs, made))
    assert whole.batches == [[batch(at) for at in range(9)]]
    assert (whole.states[3].aborted == state.aborted) == (what == "index")


def transactional(producer_id: int, base: int, value: bytes = b"x") -> bytes:
    pairs = [(None, value)]
    return bytes(
        build(
            pairs, timestamp_ms=1, base_offset=base, producer_id=producer_id, producer_epoch=0,
            base_sequence=base, attributes=TRANSACTIONAL,
        )
    )  # fmt: skip


def marker(producer_id: int, base: int, kind: int) -> bytes:
    made = pack_marker(producer_id, 0, 1, kind, 1)
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


def test_without_its_state_no_aborted_record_is_served(fs: MemFileSystem) -> None:
    """The markers in the segment say what was aborted; what they do not say is left out."""
    batches = [
        transactional(1, 0),
        transactional(2, 1),
        marker(1, 2, ABORT),
        batch(3),
        transactional(1, 4),
        marker(2, 5, COMMIT),
        marker(1, 6, COMMIT),
        transactional(3, 7),  # ended in a later segment
        batch(8),
    ]
    state = PartitionState(1, aborted=[Aborted(1, 0, 2), Aborted(3, 7, 20)])
    path = put(fs, 1, [Part(3, batches, state=state)])
    trailer = everything(read(fs, path)).trailer
    (start,) = (each.body_start for each in trailer.sections if each.name == "state")
    made, lost = skip(fs, path, flip_bits(fs, path, start + 10))
    assert lost == [Lost(3, "t3", 2, 7, 8)]
    whole = everything(read(fs, made))
    assert whole.batches == [[*batches[:7], bytes(empty_batches(7, 8)), batches[8]]]
    assert whole.states[3].aborted == [(1, 0, 2)]


def test_damage_before_a_marker_makes_an_outcome_unknown() -> None:
    """The damaged bytes may have held another marker."""
    data = memoryview(transactional(1, 0) + b"?" * 9 + transactional(1, 3) + marker(1, 4, ABORT))
    size = len(transactional(1, 0))
    bad = [BadBatches(size, size + 9, 1, 3)]
    outcomes = Outcomes()
    outcomes.add(data, bad)
    outcomes.finish()
    assert outcomes.aborted == [(1, 3, 4)]
    assert outcomes.unknown == {0}
    assert outcomes.with_unknown(data, bad) == [BadBatches(0, size, 0, 1), *bad]


def test_truncated_file_keeps_remaining_batches(fs: MemFileSystem) -> None:
    batches = [batch(at, size=3000) for at in range(9)]
    path = put(fs, 1, [Part(3, batches)])
    sound = read(fs, path)
    write(fs, path, sound[: 64 + len(batches[0]) * 5 + 50])
    made, lost = skip(fs, path, sound)
    assert lost == [Lost(3, "t3", 2, 5, 9)]
    assert everything(read(fs, made)).batches[0][:5] == batches[:5]


def test_missing_file_becomes_a_gap(fs: MemFileSystem) -> None:
    sound = read(fs, put(fs, 1, [Part(3, [batch(0), batch(1)])]))
    for name, path in ((8, ""), (9, f"{FOLDER}/none")):
        made, lost = skip(fs, path, sound, name)
        assert lost == [Lost(3, "t3", 2, 0, 2)]
        assert read_lost_ranges(fs, made) == {3: [LostRange(0, 2, NOW, 2)]}


def test_unreadable_batches_are_skipped() -> None:
    fs = BadDisk()
    fs.name = "segment"
    fs.makedirs(FOLDER)
    batches = [batch(at, size=5000) for at in range(40)]
    path = put(fs, 1, [Part(3, batches)])
    sound = read(fs, path)
    fs.bad = range(70_000, 70_001)
    _, lost = skip(fs, path, sound)
    assert lost == [Lost(3, "t3", 2, 12, 26)]


def test_rewrite_keeps_account_of_remaining_offsets(fs: MemFileSystem) -> None:
    ranges = [LostRange(2, 4, NOW, 1), LostRange(6, 8, NOW, 2)]
    parts = [batch(0, 2), bytes(empty_batches(2, 4)), batch(4, 2), bytes(empty_batches(6, 8))]
    path = put(fs, 1, [Part(3, parts, state=PartitionState(lost=ranges)), Part(4, [batch(0)])])
    keeps = pack([Keep(3, 4, 8, 0), Keep(4, 0, 1, 0)])
    result = run(fs, "rewrite", RewriteArguments(1, 6, [Input(path, b"", keeps)], output(9)))
    assert read_lost_ranges(fs, result.made[0].path) == {3: ranges[1:]}


def test_cleaning_keeps_account() -> None:
    shelf = Shelf()
    lost = LostRange(2, 4, NOW, 1)
    one = shelf.write({1: [keyed(0, (b"a", b"1"), (b"b", b"1")), bytes(empty_batches(2, 4))]})
    two = shelf.write({1: [keyed(4, (b"a", b"2"))]})
    sound = everything(read(shelf.fs, one[1].path))
    state = PartitionState(lost=[lost])
    write(shelf.fs, one[1].path, segment([Part(1, sound.batches[0], state=state)], one[1].uuid))
    result = shelf.clean(share(one[1], two[1]))
    assert read_lost_ranges(shelf.fs, result.made[0].path) == {1: [lost]}


def test_empty_batches_cover_any_range() -> None:
    heads = [head for _, head in iter_batches(empty_batches(5, 5 + (1 << 31) + 3))]
    assert [(head.base_offset, head.last_offset) for head in heads] == [
        (5, 5 + (1 << 31) - 1),
        (5 + (1 << 31), 5 + (1 << 31) + 2),
    ]
    assert all(head.size_bytes == HEAD_BYTES and not head.count for head in heads)
