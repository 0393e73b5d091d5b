"""The byte layout of journals: headers, checksums, names, and finding the next frame in garbage.

Covers: kafkawire.log.append.catalog_frames.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import HEAD_BYTES as BATCH_HEAD
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.format import HEADER_BYTES, JournalFormatError, JournalHeader, Naming
from kafkawire.log.journal.scan import scan
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch

INT64 = st.integers(0, (1 << 63) - 1)


@given(INT64, INT64, INT64, INT64)
def test_header_round_trips(journal: int, run: int, previous_end: int, created: int) -> None:
    header = JournalHeader(journal, run, previous_end, created)
    data = journal_format.write_header(header)
    assert len(data) == HEADER_BYTES
    assert journal_format.read_header(data, "x") == header


@given(st.binary(max_size=100))
def test_garbage_is_not_a_header(data: bytes) -> None:
    assert journal_format.read_header(data, "x") is None


@given(st.integers(16, HEADER_BYTES - 1), st.integers(0, 7))
def test_damaged_header_is_rejected(at: int, bit: int) -> None:
    data = bytearray(journal_format.write_header(JournalHeader(1, 2, 3, 4)))
    data[at] ^= 1 << bit
    assert journal_format.read_header(data, "x") is None


def test_newer_header_is_refused() -> None:
    data = bytearray(journal_format.write_header(JournalHeader(1, 2, 3, 4)))
    data[11] = 2
    with pytest.raises(
        JournalFormatError, match=r"x has format version 2.*start the newer version"
    ):
        journal_format.read_header(data, "x")


@given(
    st.binary(min_size=16, max_size=16),
    st.text(max_size=80),
    st.integers(0, (1 << 31) - 1),
    INT64,
)
def test_naming_frame_round_trips(topic_id: bytes, name: str, index: int, offset: int) -> None:
    naming = Naming(topic_id, name, index, 5, offset, offset)
    assert journal_format.read_naming(journal_format.write_naming(naming)) == naming


def test_catalog_frames_round_trip_and_newer_ones_are_refused() -> None:
    assert journal_format.read_catalog(journal_format.write_catalog({"id": "x"}))["id"] == "x"
    several = journal_format.read_catalog(
        journal_format.write_catalog({"topics": [{"id": "x"}, {"id": "y"}]})
    )
    assert [topic["id"] for topic in journal_format.topics_of(several)] == ["x", "y"]
    assert journal_format.topics_of({"id": "x"}) == [{"id": "x"}]
    assert journal_format.topics_of({}) == []  # of a roll
    for data in (b'{"version":3}', b"[]", b"{", b"\xff"):
        with pytest.raises(JournalFormatError):
            journal_format.read_catalog(data)
    with pytest.raises(JournalFormatError):
        journal_format.read_naming(b"short")


async def journal() -> tuple[bytearray, list[int]]:
    """A journal with frames of one and of several batches; the positions of the batch frames."""
    world = World()
    log = await world.start()
    one, two = await world.topic("t", 2)
    for count in (1, 3, 2):
        for _ in range(count):
            one.append(batch(b"a", b"b"), EPOCH_MS)
            two.append(batch(b"c"), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    active = log.journals.active
    assert active.view is not None
    data = bytearray(active.view[: active.end])
    log_positions = sorted([*one.rows.log_position, *two.rows.log_position])
    return data, [
        (log_position & 0xFFFFFFFF) - journal_format.HEAD_BYTES for log_position in log_positions
    ]


async def test_every_frame_is_aligned_and_found() -> None:
    data, starts = await journal()
    assert all(start % 8 == 0 for start in starts)
    found = scan(memoryview(data), 1, HEADER_BYTES, len(data), 0)
    assert found.gaps == []
    assert found.end == len(data)
    assert sum(len(rows) for rows in found.rows.values()) == len(starts)
    assert {naming.index for _, naming in found.named.values()} == {0, 1}


async def test_any_flipped_bit_is_detected() -> None:
    """In the frame header, in the batches' headers (also of the second and third) and in their
    records."""
    data, starts = await journal()
    start = starts[2]
    head = journal_format.read_head(data, start)
    assert head is not None
    assert head.batches == 3
    end = start + journal_format.HEAD_BYTES + head.length
    for at in range(start, end):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        found = scan(memoryview(damaged), 1, HEADER_BYTES, len(data), 0)
        assert len(found.gaps) == 1, at
        assert found.gaps[0].start == start
        assert sum(len(rows) for rows in found.rows.values()) == len(starts) - 1


async def test_next_frame_is_found_after_garbage() -> None:
    data, starts = await journal()
    view = memoryview(data)
    for start in starts:
        assert journal_format.find_frame(view, start, len(data), 1) == start
        assert journal_format.find_frame(view, start - 8, len(data), 1) <= start
    assert journal_format.find_frame(view, starts[-1] + 8, len(data), 1) == -1
    assert journal_format.find_frame(view, 0, len(data), 2) == -1, (
        "frames of another journal do not count"
    )
    moved = memoryview(bytes(8) + bytes(data))
    assert journal_format.find_frame(moved, 0, len(moved), 1) == -1, (
        "nor do frames at another position"
    )


@given(st.binary(max_size=300))
def test_garbage_contains_no_frame_or_batch(data: bytes) -> None:
    assert journal_format.find_frame(memoryview(data), 0, len(data), 1) == -1
    starts = journal_format.batch_starts(data, 0, len(data))
    assert starts is None or all(0 <= at <= len(data) - BATCH_HEAD for at in starts)


async def test_frame_of_older_run_after_newer_one_is_ignored() -> None:
    data, starts = await journal()
    found = scan(memoryview(data), 1, HEADER_BYTES, len(data), 1 << 40)
    assert (found.rows, found.end) == ({}, HEADER_BYTES)
    assert starts


async def test_scan_collects_replay_data_of_valid_frames_only() -> None:
    """Each batch of a producer, and the first of each leader epoch that is valid."""
    world = World()
    log = await world.start()
    (one,) = await world.topic("t")
    producer = {"producer_id": 9, "producer_epoch": 1}
    for epoch, more in (
        (3, {}), (3, {}), (4, {}), (4, {}),
        (4, {**producer, "base_sequence": 0}), (4, {**producer, "base_sequence": 1}),
    ):  # fmt: skip
        one.start_epoch(epoch)
        one.append(batch(b"x", **more), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    active = log.journals.active
    assert active.view is not None
    for damaged in (None, 2):
        data = bytearray(active.view[: active.end])
        if damaged is not None:
            data[(one.rows.log_position[damaged] & 0xFFFFFFFF) + BATCH_HEAD] ^= 1
        found = scan(memoryview(data), 1, HEADER_BYTES, len(data), 0)
        noted = [(fields[0], fields[2]) for _, fields, _ in found.facts[one.number]]
        assert noted == [(0, 3), (2 if damaged is None else 3, 4), (4, 4), (5, 4)]
        assert [gap.first for gap in found.gaps] == ([] if damaged is None else [damaged])
