"""The codecs: round trips, other libraries' formats, damage, and bombs that stop at the limit."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from types import TracebackType

import cramjam
import lz4.block
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.compression import (
    ALL_CODECS_FROM,
    CODEC_NAMES,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    BufferTooSmall,
    compress,
    decompress,
    decompress_into,
    is_linked_lz4,
    produce_version,
)
from kafkawire.codec.errors import ErrorCode, KafkaError

TEXT = b"".join(b"record %d of a batch that repeats itself; " % (i % 50) for i in range(20_000))
REAL = (GZIP, SNAPPY, LZ4, ZSTD)
MIB = 1 << 20


def code_of_decompress(codec: int, data: bytes, limit: int = MIB) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, limit)
    return caught.value.code


@pytest.mark.parametrize("codec", range(5))
@given(data=st.binary(max_size=5000) | st.binary(max_size=20).map(lambda b: b * 4000))
def test_compression_round_trips(codec: int, data: bytes) -> None:
    packed = compress(codec, bytearray(data))
    assert bytes(decompress(codec, memoryview(packed), len(data) or 1)) == data


def test_other_libraries_decompress_ours() -> None:
    assert gzip.decompress(compress(GZIP, TEXT)) == TEXT
    assert lz4.frame.decompress(compress(LZ4, TEXT)) == TEXT
    assert zstandard.ZstdDecompressor().decompress(compress(ZSTD, TEXT), MIB) == TEXT
    packed = bytes(compress(SNAPPY, TEXT))  # snappy-java's framing: 16 bytes, then sized blocks
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    (length,) = struct.unpack_from(">i", packed, 16)
    assert TEXT.startswith(snappy.uncompress(packed[20 : 20 + length]))


def test_data_of_other_libraries_is_decompressed() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    theirs = {
        GZIP: [gzip.compress(TEXT), gzip.compress(TEXT[:999]) + gzip.compress(TEXT[999:])],
        SNAPPY: [snappy.compress(TEXT)],
        LZ4: [
            lz4.frame.compress(TEXT, block_linked=linked, store_size=size, content_checksum=check)
            for linked, size, check in ((True, True, False), (False, False, True))
        ],
        ZSTD: [zstandard.compress(TEXT), compressor.compress(TEXT)],
    }
    for codec, forms in theirs.items():
        for form in forms:
            assert bytes(decompress(codec, form, MIB)) == TEXT, CODEC_NAMES[codec]


def test_lz4_blocks_are_independent_for_kafkas_reader() -> None:
    assert lz4.frame.get_frame_info(bytes(compress(LZ4, TEXT)))["block_linked"] is False


@pytest.mark.parametrize(("codec", "least", "most"), [(GZIP, 1, 9), (LZ4, 1, 17), (ZSTD, -5, 19)])
def test_levels_change_size_and_minus_one_is_gzip_default(
    codec: int, least: int, most: int
) -> None:
    words = random.Random(1).choices([b"alpha ", b"beta ", b"gamma ", b"delta "], k=20_000)
    data = b"".join(words)
    small, large = compress(codec, data, most), compress(codec, data, least)
    assert len(small) < len(large)
    assert bytes(decompress(codec, small, MIB)) == data
    assert bytes(compress(GZIP, data, -1)) == bytes(compress(GZIP, data, 6))


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000, 300_000])
def test_decompression_limit_is_exact(codec: int, size: int) -> None:
    data = TEXT[:size]
    packed = bytes(compress(codec, data))
    assert bytes(decompress(codec, packed, max(size, 1))) == data
    if size > 1:
        assert code_of_decompress(codec, packed, size - 1) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_full_buffer_error_has_expected_text(codec: int) -> None:
    into = {
        GZIP: cramjam.gzip.decompress_into,
        LZ4: cramjam.lz4.decompress_into,
        ZSTD: cramjam.zstd.decompress_into,
    }
    with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
        into[codec](bytes(compress(codec, TEXT)), bytearray(100))


@pytest.mark.slow
def test_decompression_bombs_stop_at_limit() -> None:
    zeros = bytes(16 * MIB)
    for codec in REAL:
        bomb = bytes(compress(codec, zeros))
        assert code_of_decompress(codec, bomb) is ErrorCode.MESSAGE_TOO_LARGE, CODEC_NAMES[codec]
    small = zlib.compressobj(wbits=31)
    bomb = b"".join([small.compress(zeros) for _ in range(4)]) + small.flush()
    assert code_of_decompress(GZIP, bomb) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("kind", ["bomb", "damaged"])
def test_failure_keeps_no_buffer(codec: int, kind: str) -> None:
    """The event loop, which gets it from a thread, would free it."""
    packed = bytes(compress(codec, bytes(4 * MIB) if kind == "bomb" else TEXT))
    with pytest.raises(KafkaError) as caught:
        decompress(codec, packed if kind == "bomb" else packed[: len(packed) // 2], 2 * MIB)
    step: TracebackType | None = caught.value.__traceback__
    assert caught.value.__context__ is None
    while step is not None:
        assert not any(isinstance(kept, bytearray) for kept in step.tb_frame.f_locals.values())
        step = step.tb_next


def test_false_sizes_allocate_nothing() -> None:
    huge = b"\xff\xff\xff\xff\x0f" + b"\0" * 10  # raw snappy that claims 4 GiB - 1
    assert code_of_decompress(SNAPPY, huge) is ErrorCode.MESSAGE_TOO_LARGE
    head = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    for tail in (b"\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x05abc"):
        assert code_of_decompress(SNAPPY, head + tail) is ErrorCode.CORRUPT_MESSAGE


def test_unknown_codec_is_refused() -> None:
    assert code_of_decompress(5, b"x") is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", REAL)
def test_damage_raises_only_corrupt_error(codec: int) -> None:
    rng = random.Random(codec)
    sound = bytes(compress(codec, TEXT[:3000]))
    codes = set()
    for _ in range(1500):
        broken = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        if rng.random() < 0.3:
            del broken[rng.randrange(len(broken)) :]
        try:
            assert len(decompress(codec, bytes(broken), MIB)) <= MIB
        except KafkaError as error:
            codes.add(error.code)
    assert ErrorCode.CORRUPT_MESSAGE in codes
    assert codes <= {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE}


def xerial(data: bytes) -> bytes:
    return bytes(compress(SNAPPY, data))


def damaged_at(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :]


GZ, FRAME, ZS = (bytes(compress(codec, TEXT)) for codec in (GZIP, LZ4, ZSTD))
ODD = {
    "bytes after gzip": (GZIP, GZ + bytes(8)),
    "garbage after gzip": (GZIP, GZ + b"\x1f\x8bgarbage" * 9),
    "a cut head after gzip": (GZIP, GZ + GZ[:5]),
    "garbage after two members": (GZIP, gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]) + b"xyz"),
    "frames after lz4": (LZ4, FRAME + FRAME),
    "bytes after lz4": (LZ4, FRAME + b"xyz"),
    "two frames of zstd": (ZSTD, bytes(compress(ZSTD, TEXT[:9])) + bytes(compress(ZSTD, TEXT[9:]))),
    "two streams of snappy": (SNAPPY, xerial(TEXT[:99]) + xerial(TEXT[99:])),
    "raw snappy": (SNAPPY, snappy.compress(TEXT)),
}
"""Data that Kafka's Java clients read, although no usual library writes it."""
UNREADABLE = {
    "zlib": (GZIP, zlib.compress(TEXT)),
    "cut gzip": (GZIP, GZ[:-3]),
    "gzip with another checksum": (GZIP, damaged_at(GZ, len(GZ) - 6)),
    "a damaged member after gzip": (GZIP, GZ + damaged_at(GZ, 40)),
    "a cut member after gzip": (GZIP, GZ + GZ[:-3]),
    "framed snappy": (SNAPPY, cramjam.snappy.compress(TEXT)),
    "bytes after zstd": (ZSTD, ZS + b"xyz"),
    "cut zstd": (ZSTD, ZS[:-3]),
    "lz4 with another head checksum": (LZ4, damaged_at(FRAME, 6)),
    "a block of lz4 without a frame": (LZ4, lz4.block.compress(TEXT)),
    "cut lz4": (LZ4, FRAME[:-3]),
    **{f"empty {CODEC_NAMES[codec]}": (codec, b"") for codec in REAL},
}


@pytest.mark.parametrize("name", ODD)
def test_what_kafkas_clients_read_is_read(name: str) -> None:
    codec, data = ODD[name]
    assert bytes(decompress(codec, data, MIB)) == TEXT
    out = bytearray(len(TEXT))
    assert decompress_into(codec, data, out) == len(TEXT)
    assert out == TEXT
    with pytest.raises(BufferTooSmall):
        decompress_into(codec, data, bytearray(len(TEXT) - 1))


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_kafkas_clients_cannot_read_is_damaged(name: str) -> None:
    assert code_of_decompress(*UNREADABLE[name], 2 * MIB) is ErrorCode.CORRUPT_MESSAGE


def test_gzip_bomb_after_which_bytes_follow_stops_at_limit() -> None:
    bomb = gzip.compress(bytes(4 * MIB)) + bytes(8)
    assert code_of_decompress(GZIP, bomb) is ErrorCode.MESSAGE_TOO_LARGE


def test_linked_blocks_of_lz4_are_known() -> None:
    assert not is_linked_lz4(FRAME)
    assert is_linked_lz4(lz4.frame.compress(TEXT, block_linked=True))
    assert not is_linked_lz4(b"")


def test_short_blocks_of_lz4_are_bounded() -> None:
    frame = lz4.frame.compress(b"x" * 70_000, block_linked=False, store_size=False)
    head, block = frame[:7], struct.pack("<I", 1 << 31 | 1) + b"x"
    assert bytes(decompress(LZ4, head + block * 400 + bytes(4), MIB)) == b"x" * 400
    many = head + block * 100_000 + bytes(4)
    assert code_of_decompress(LZ4, many) is ErrorCode.MESSAGE_TOO_LARGE


def test_zstd_requires_produce_v7() -> None:
    assert [produce_version(codec) for codec in range(6)] == [0, 0, 0, 0, 7, 0]
    assert ALL_CODECS_FROM == 7
