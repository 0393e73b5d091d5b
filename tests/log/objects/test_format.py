"""The bytes of log objects: written, read, damaged at every bit, cut off at every byte, lying.

Covers: kafkawire.log.journal.format.
"""

from __future__ import annotations

from dataclasses import replace
from struct import pack_into
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.format import JournalFormatError, Naming
from kafkawire.log.objects.format import (
    HEADER_BYTES,
    MAX_OBJECT_BYTES,
    LogObjectError,
    ObjectHead,
    StoredFrame,
    read_frames,
    read_header,
    read_names,
    write_fence,
    write_head,
)
from kafkawire.manifest.keys import log_object_key
from tests.kit.env import EPOCH_MS
from tests.kit.log.log_objects import NONCE, frame_of, naming_of, object_of, small_object
from tests.kit.log.logs import World, batch

INT64 = st.integers(0, (1 << 63) - 1)
KEY = log_object_key(7, 2)
NAMINGS = st.builds(
    Naming,
    st.binary(min_size=16, max_size=16),
    st.text(max_size=60),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, (1 << 31) - 1),
    INT64,
    INT64,
)
FRAMES = st.tuples(
    st.integers(1, (1 << 63) - 1),
    INT64,
    INT64,
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=3), min_size=1, max_size=3),
)
CHECKSUM_AT, NAMES_LENGTH_AT, FRAME_COUNT_AT, FRAMES_LENGTH_AT = 12, 60, 64, 72


def content(data: bytes | bytearray) -> tuple[ObjectHead, dict[int, Naming], list[StoredFrame]]:
    """Everything that an object says."""
    head = read_header(data, KEY)
    return head, read_names(data, head), list(read_frames(memoryview(data), head))


def with_header(data: bytes, at: int, form: str, value: int) -> bytearray:
    """An object whose header says something else, with the right checksum."""
    changed = bytearray(data)
    pack_into(form, changed, at, value)
    checksum = crc32c(changed[16:HEADER_BYTES], crc32c(changed[:12]))
    pack_into(">I", changed, CHECKSUM_AT, checksum)
    return changed


@given(INT64, INT64, INT64, st.dictionaries(INT64, NAMINGS, max_size=4), st.lists(FRAMES))
def test_objects_round_trip(
    node_id: int, epoch: int, sequence: int, names: dict[int, Naming], frames: list[Any]
) -> None:
    made = [
        StoredFrame(number, position, run, [batch(*values) for values in batches])
        for number, position, run, batches in frames
    ]
    packed = [frame_of(each.number, each.log_position, each.batches, each.run) for each in made]
    data = object_of(packed, names, node_id=node_id, epoch=epoch, sequence=sequence)
    key = log_object_key(epoch, sequence)
    head = read_header(data[:HEADER_BYTES], key)
    assert (head.node_id, head.broker_epoch, head.sequence) == (node_id, epoch, sequence)
    assert (head.key, head.nonce, head.is_fence, head.fenced_by) == (key, NONCE, False, 0)
    assert head.size_bytes == len(data)
    assert head.frames_start % 8 == 0
    assert read_names(data[: head.frames_start], head) == names
    assert list(read_frames(memoryview(data), head)) == made


@given(INT64, INT64, INT64, INT64, INT64, st.binary(min_size=16, max_size=16))
def test_fences_round_trip(
    node_id: int, epoch: int, sequence: int, fenced_by: int, created_ms: int, nonce: bytes
) -> None:
    data = write_fence(node_id, epoch, sequence, nonce, fenced_by, created_ms)
    assert len(data) == HEADER_BYTES
    head = read_header(data, log_object_key(epoch, sequence))
    assert (head.node_id, head.broker_epoch, head.sequence) == (node_id, epoch, sequence)
    assert (head.nonce, head.fenced_by, head.created_ms) == (nonce, fenced_by, created_ms)
    assert head.is_fence
    assert head.size_bytes == HEADER_BYTES
    assert read_names(data, head) == {}
    assert list(read_frames(memoryview(data), head)) == []


async def test_frames_of_journals_are_read() -> None:
    """From ranges of a journal that do not adjoin."""
    world = World()
    log = await world.start()
    one, two = await world.topic("t", 2)
    for count in (1, 3):
        for _ in range(count):
            one.append(batch(b"a", b"b"), EPOCH_MS)
            two.append(batch(b"c"), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    active = log.journals.active
    assert active.view is not None
    frames = []
    for position in (position - journal_format.HEAD_BYTES for position in two.rows.log_position):
        at = position & 0xFFFFFFFF
        head = journal_format.read_head(active.view, at)
        assert head is not None
        end = journal_format.pad_length(at + journal_format.HEAD_BYTES + head.length)
        frames.append(bytes(active.view[at:end]))
    found = content(object_of(frames, {two.number: naming_of(1)}))[2]
    assert [frame.number for frame in found] == [two.number] * 2
    assert [len(frame.batches) for frame in found] == [1, 3]
    assert [frame.log_position + journal_format.HEAD_BYTES for frame in found] == list(
        two.rows.log_position
    )


def test_every_flipped_bit_is_detected_or_harmless() -> None:
    """Harmless are only the bits of padding."""
    data = small_object()
    before = content(data)
    ignored: set[int] = set()
    reports: list[str] = []
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                found = content(damaged)
            except JournalFormatError as failure:
                reports.append(str(failure))
            else:
                ignored.add(at)
                assert found == before
    assert all(KEY in report for report in reports)
    head = before[0]
    padding = set(range(HEADER_BYTES + head.names_length, head.frames_start))
    at = head.frames_start
    for frame in before[2]:
        end = at + journal_format.HEAD_BYTES + sum(map(len, frame.batches))
        at = journal_format.pad_length(end)
        padding |= set(range(end, at))
    assert padding == ignored
    assert len(padding) > 5


def test_every_flipped_bit_of_fence_is_detected() -> None:
    data = write_fence(1, 7, 2, NONCE, 9, 10)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(JournalFormatError, match=KEY):
                read_header(damaged, KEY)


def test_truncated_objects_are_detected() -> None:
    data = small_object()
    whole = read_header(data, KEY)
    for size in range(len(data)):
        cut = data[:size]
        with pytest.raises(LogObjectError, match=f"{KEY} is damaged"):
            content(cut)
        if size < whole.frames_start:
            with pytest.raises(LogObjectError):
                read_names(cut, whole)
        with pytest.raises(LogObjectError, match=f"it has {size} bytes"):
            list(read_frames(memoryview(cut), whole))
    with pytest.raises(LogObjectError, match=f"it has {len(data) + 8} bytes"):
        content(data + bytes(8))


@pytest.mark.parametrize("value", [0, 1, 4, 95, 1 << 20, (1 << 32) - 1])
def test_lying_lengths_of_names_are_refused(value: int) -> None:
    with pytest.raises(LogObjectError, match=KEY):
        content(with_header(small_object(), NAMES_LENGTH_AT, ">I", value))


@pytest.mark.parametrize("value", [0, 1, 2, 4, 1000, (1 << 32) - 1])
def test_lying_counts_of_frames_are_refused(value: int) -> None:
    with pytest.raises(LogObjectError, match=KEY):
        content(with_header(small_object(), FRAME_COUNT_AT, ">I", value))


@pytest.mark.parametrize("value", [-8, -1, 0, 1, 8, 336, 1 << 20, MAX_OBJECT_BYTES, 1 << 62])
def test_lying_lengths_of_frames_are_refused(value: int) -> None:
    with pytest.raises(LogObjectError, match=KEY):
        content(with_header(small_object(), FRAMES_LENGTH_AT, ">q", value))


@pytest.mark.parametrize("at", [NAMES_LENGTH_AT, FRAME_COUNT_AT, FRAMES_LENGTH_AT + 4])
def test_fences_hold_nothing(at: int) -> None:
    with pytest.raises(LogObjectError, match="its header names"):
        read_header(with_header(write_fence(1, 7, 2, NONCE, 9, 10), at, ">I", 8), KEY)


def test_lying_lengths_of_entries_are_refused() -> None:
    data = object_of([], {5: naming_of(5)})
    head = read_header(data, KEY)
    end = HEADER_BYTES + head.names_length - 4
    for length in (0, 1, head.names_length - 17, head.names_length, (1 << 32) - 1):
        changed = bytearray(data)
        pack_into(">I", changed, HEADER_BYTES + 8, length)
        pack_into(">I", changed, end, crc32c(changed[HEADER_BYTES:end]))
        with pytest.raises(LogObjectError, match=r"partition 5|cut off"):
            read_names(changed, head)


def test_partition_named_twice_is_refused() -> None:
    data = bytearray(object_of([], {5: naming_of(5), 6: naming_of(5)}))
    head = read_header(data, KEY)
    end = HEADER_BYTES + head.names_length - 4
    pack_into(">q", data, HEADER_BYTES + (head.names_length - 4) // 2, 5)
    pack_into(">I", data, end, crc32c(data[HEADER_BYTES:end]))
    with pytest.raises(LogObjectError, match="names partition 5 twice"):
        read_names(data, head)


def test_damage_names_frame_and_partition() -> None:
    data = bytearray(small_object())
    data[-9] ^= 1  # the last record
    head = read_header(data, KEY)
    frames = read_frames(memoryview(data), head)
    assert [next(frames).number, next(frames).number] == [5, 1 << 40]
    with pytest.raises(
        LogObjectError,
        match=f"{KEY} is damaged: frame 2, of partition 5 at log position {4 << 32 | 64}: the CRC "
        "of the batch at offset 0 is wrong",
    ):
        next(frames)


def test_frames_of_other_kinds_are_refused() -> None:
    payload = journal_format.write_naming(naming_of(5)) + bytes(30)
    frame = frame_of(5, 64, [payload], kind=journal_format.KIND_NAMING)
    with pytest.raises(LogObjectError, match="frame 0, of partition 5"):
        content(object_of([frame], {}))
    with pytest.raises(LogObjectError, match="frame 0"):  # without batches
        content(object_of([frame_of(5, 64, []) + bytes(64)], {}))


def test_newer_version_and_other_files_are_refused() -> None:
    data = bytearray(small_object())
    data[11] = 2
    with pytest.raises(
        JournalFormatError,
        match=f"the log object {KEY} has format version 2.*start the newer version",
    ):
        read_header(data, KEY)
    data[11] = 0
    with pytest.raises(LogObjectError, match="checksum of its header"):
        read_header(data, KEY)
    with pytest.raises(LogObjectError, match="does not begin as a log object"):
        read_header(b"KWJOURN\0" + bytes(100), KEY)
    with pytest.raises(LogObjectError, match="no kind 3 of log objects"):
        read_header(with_header(small_object(), 56, ">I", 3), KEY)


def test_object_under_another_key_is_refused() -> None:
    data = small_object()
    for key in (log_object_key(7, 3), log_object_key(8, 2)):
        with pytest.raises(LogObjectError, match=f"{key} is damaged: its header is that of {KEY}"):
            read_header(data, key)
    assert read_header(data, "copy.object").key == KEY  # of a copied file the name is unknown


@given(st.binary(max_size=200))
def test_garbage_is_no_object(data: bytes) -> None:
    with pytest.raises(LogObjectError):
        read_header(data, KEY)


def test_too_large_objects_and_wrong_nonces_are_not_written() -> None:
    head = ObjectHead(1, 7, 2, NONCE, 1, MAX_OBJECT_BYTES, 0)
    with pytest.raises(ValueError, match="at most"):
        write_head(head, {})
    with pytest.raises(ValueError, match="nonce of 3 bytes"):
        write_head(replace(head, nonce=b"abc", frames_length=0, frame_count=0), {})
