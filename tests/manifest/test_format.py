"""The bytes of manifest files: written, read, skipped, refused; and damage to every bit."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.manifest import format as file_format
from kafkawire.manifest import keys
from kafkawire.manifest.format import (
    pack,
    unpack,
)
from kafkawire.manifest.state import Delta, Snapshot
from tests.kit.tier.manifests import CLUSTER, add, deltas, entry, large, sample, uuid

SAMPLE = pack(sample())
LARGE = pack(large())


def resummed(data: bytes | bytearray) -> bytes:
    """The same file with valid checksums, as far as it has sections."""
    made = bytearray(data)
    count = struct.unpack_from("<I", made, 28)[0] if len(made) >= 32 else 0
    table_end = min(len(made), 32 + 32 * min(count, 100))
    at = table_end
    for row in range(32, table_end - 31, 32):
        (stored,) = struct.unpack_from("<Q", made, row + 8)
        struct.pack_into("<I", made, row + 28, crc32c(bytes(made[at : at + stored])))
        at += stored
    if len(made) >= 32:
        head = bytes(made[:12]) + bytes(made[16:32]) + bytes(made[32:table_end])
        struct.pack_into("<I", made, 12, crc32c(head))
    return bytes(made)


@pytest.mark.parametrize("content", [sample(), large(), Delta(1, "", 0, 0, 0)])
def test_delta_round_trips(content: Delta) -> None:
    found = unpack(pack(content))
    assert found == content
    assert type(found) is Delta
    assert found.objects.retention_class(len(found.objects) - 1) if len(found.objects) else True


def test_snapshot_round_trips() -> None:
    snapshot = Snapshot(5, CLUSTER, 1, 1, 1)
    assert type(unpack(pack(snapshot))) is Snapshot
    assert unpack(pack(snapshot)) == snapshot


@given(deltas())
def test_random_deltas_round_trip(delta: Delta) -> None:
    data = pack(delta)
    assert unpack(data) == delta
    assert pack(unpack(data)) == data
    assert unpack(memoryview(data)) == delta


def test_only_large_sections_are_compressed() -> None:
    flags = {row.name: row.flags for row in file_format.read_table(LARGE)[1]}
    assert flags["entries section"] == file_format.REQUIRED | file_format.PACKED
    assert flags["head section"] == file_format.REQUIRED
    assert len(LARGE) < len(large().entries) * 76


def test_numbers_out_of_range_are_refused() -> None:
    delta = sample()
    with pytest.raises(OverflowError):
        add(delta, 9, [entry(-1, 0, 1)])


@pytest.mark.parametrize("data", [SAMPLE, LARGE])
def test_every_flipped_bit_is_found(data: bytes) -> None:
    rng = random.Random(1)
    places = range(len(data)) if data is SAMPLE else rng.sample(range(len(data)), 400)
    for at in places:
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        with pytest.raises(FormatError):
            unpack(bytes(damaged))


def test_every_truncation_is_found() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises(FormatError):
            unpack(SAMPLE[:length])
    with pytest.raises(FormatError, match="its header says"):
        unpack(SAMPLE + b"x")


@given(st.data())
def test_garbage_with_valid_checksums_is_refused_or_read(data: st.DataObject) -> None:
    """Arbitrary content never raises anything but FormatError."""
    rng = data.draw(st.randoms(use_true_random=False))
    for source in (SAMPLE, LARGE):
        for _ in range(40):
            made = bytearray(source)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(8, len(made)) if rng.random() < 0.5 else rng.randrange(8, 300)
                made[at] = rng.choice((0, 1, 255, rng.randrange(256)))
            with suppress(FormatError):
                unpack(resummed(made))


def test_row_counts_are_checked_against_available_bytes() -> None:
    table = file_format.read_table(SAMPLE)[1]
    for at, row in enumerate(table):
        if row.kind == file_format.HEAD:
            continue
        for count in (0, row.rows + 1, 0xFFFFFFFF):
            made = bytearray(SAMPLE)
            struct.pack_into("<I", made, 32 + 32 * at + 24, count)
            with pytest.raises(FormatError):
                unpack(resummed(made))


def test_false_size_of_compressed_section_is_refused() -> None:
    table = file_format.read_table(LARGE)[1]
    at = next(n for n, row in enumerate(table) if row.flags & file_format.PACKED)
    for length in (0, table[at].length - 1, table[at].length + 1, 1 << 31, 1 << 62):
        made = bytearray(LARGE)
        struct.pack_into("<Q", made, 32 + 32 * at + 16, length)
        with pytest.raises(FormatError):
            unpack(resummed(made))


def test_newer_version_is_refused_in_one_sentence() -> None:
    made = bytearray(SAMPLE)
    struct.pack_into("<I", made, 8, 2)
    with pytest.raises(NewerFormatError, match="version 2, this kafkawire reads up to 1"):
        unpack(resummed(made))
    struct.pack_into("<I", made, 8, 0)
    with pytest.raises(FormatError, match="never was"):
        unpack(resummed(made))


def test_unknown_section_is_skipped_unless_required() -> None:
    body = b"of the future"
    _, table = file_format.read_table(SAMPLE)
    sections = [(row.kind, row.rows, bytes(row.body())) for row in table]
    made = bytearray(file_format.write_file(file_format.DELTA, [*sections, (99, 1, body)]))
    at = 32 + 32 * len(sections)
    with pytest.raises(NewerFormatError, match="type 99 section"):
        unpack(bytes(made))
    struct.pack_into("<I", made, at + 4, 0)
    assert unpack(resummed(made)) == sample()
    struct.pack_into("<HHI", made, 32, file_format.HEAD, 2, file_format.REQUIRED)
    with pytest.raises(NewerFormatError, match="its head section has version 2"):
        unpack(resummed(made))


@pytest.mark.parametrize(
    "head",
    [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"sequence":true}', b'{"cluster_id":"a"}',
     b'{"sequence":1,"node_id":1,"epoch":1,"created_ms":1,"cluster_id":7}',
     b'{"sequence":1,"node_id":1,"epoch":1,"created_ms":1e3,"cluster_id":"c"}',
     b'{"sequence":99999999999999999999,"node_id":1,"epoch":1,"created_ms":1,"cluster_id":"c"}',
     b'{"sequence":1,"node_id":1,"epoch":1,"created_ms":1,"cluster_id":"c","classes":[1]}',
     b'{"sequence":1,"node_id":1,"epoch":1,"created_ms":1,"cluster_id":"c","cluster":{}}',
     b'{"sequence":1,"node_id":1,"epoch":1,"created_ms":1,"cluster_id":"c","cluster":[]}'],
)  # fmt: skip
def test_invalid_headers_are_refused(head: bytes) -> None:
    with pytest.raises(FormatError):
        unpack(file_format.write_file(file_format.DELTA, [(file_format.HEAD, 1, head)]))


def test_header_may_have_unknown_fields() -> None:
    head = b'{"sequence":1,"node_id":1,"epoch":1,"created_ms":1,"cluster_id":"c","new":{"a":[1]}}'
    assert unpack(file_format.write_file(1, [(file_format.HEAD, 1, head)])) == Delta(
        1, "c", 1, 1, 1
    )
    with pytest.raises(FormatError, match="no head"):
        unpack(file_format.write_file(1, []))
    with pytest.raises(FormatError, match="its head section twice"):
        unpack(file_format.write_file(1, [(file_format.HEAD, 1, head)] * 2))
    with pytest.raises(FormatError, match="kind 3"):
        unpack(file_format.write_file(3, [(file_format.HEAD, 1, head)]))


def test_object_keys() -> None:
    assert keys.delta_key(7) == "manifest/delta-00000000000000000007"
    assert keys.snapshot_key(12) == "manifest/snapshot-00000000000000000012"
    assert keys.sequence_of(keys.delta_key(7)) == 7
    assert keys.sequence_of(keys.snapshot_key(1 << 60)) == 1 << 60
    assert keys.segment_uuid(keys.segment_key(uuid(5))) == uuid(5)
    for name in ("owner", "manifest/current", "manifest/delta-7", "segments/xyz.segment", "",
                 "segments/" + "A" * 32 + ".segment", keys.segment_key(uuid(5)) + "x"):  # fmt: skip
        assert keys.segment_uuid(name) is None
        assert keys.sequence_of(name) is None


def test_keys_of_log_objects() -> None:
    key = keys.log_object_key(12, 7)
    assert key == "log/00000000000000000012/00000000000000000007"
    assert keys.log_prefix(12) == "log/00000000000000000012/"
    assert keys.parse_log_object_key(key) == (12, 7)
    most = (1 << 63) - 1
    assert keys.parse_log_object_key(keys.log_object_key(most, most)) == (most, most)
    for name in ("", "owner", "log", "log/", keys.log_prefix(12), key[:-1], key + "0", key + "/",
                 "log/" + key, key + "/" + "0" * 20, "nodes/2/" + key, key[4:],
                 key.replace("12", "-1"), key.replace("7", "x"), keys.delta_key(7)):  # fmt: skip
        assert keys.parse_log_object_key(name) is None, name
    assert keys.sequence_of(key) is None
