"""The four codecs of record batches: gzip, snappy, lz4, zstd, through cramjam.

What can be read is what Kafka's Java clients read: bytes after the last member of a gzip stream and
after the first frame of lz4 are ignored, several frames of zstd are one stream, and anything else
after one is damage. Snappy is read raw and in snappy-java's framing (magic, two int32 versions,
then int32-prefixed raw blocks) and written in that framing, which every client reads. LZ4 frames
are written with independent blocks: Kafka's Java reader takes no others (`is_linked_lz4`).

Decompression is bounded: it writes into a buffer of a chosen size and stops when that is full, so a
decompression bomb costs at most the limit. cramjam releases the interpreter lock meanwhile.

A codec is added here, at the end in `_CODECS`, and in the settings (`COMPRESSION_TYPES`). Not here:
the codec id in a batch head (`codec.batches`).
"""

import zlib
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import cramjam

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""Codec ids: bits 0-2 of a batch's attributes."""
OFFERED = (ZSTD, LZ4, GZIP, SNAPPY)
"""Codecs offered to clients that push metrics, in Kafka's order of preference."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEAD = _XERIAL_MAGIC + b"\0\0\0\x01\0\0\0\x01"  # version 1, compatible with 1
_XERIAL_BLOCK_BYTES = 32 * 1024  # snappy-java's own block size
_INT = Struct(">i")
_FREE_BLOCKS = 500
_BLOCK_BYTES_MIN = 4096
"""Blocks of a snappy or lz4 stream that may be shorter than this are FREE_BLOCKS: each costs a
microsecond or two, whatever it holds. Writers fill them: snappy-java's have 32 KiB."""

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_BYTES_MIN = 18  # a header and a trailer
_GZIP_STEP_BYTES = 16 << 10
_LZ4_HEAD = Struct("<IBB")
_LZ4_BLOCK = Struct("<I")
_LZ4_MAGIC = 0x184D2204
_LZ4_INDEPENDENT, _LZ4_BLOCK_SUM, _LZ4_SIZE, _LZ4_DICTIONARY = 0x20, 0x10, 0x08, 0x01
_LZ4_STORED = 1 << 31  # of a block's length: it is not compressed

# cramjam has one exception for everything; this text (Rust's for a full writer) tells a buffer
# that was too small from damaged input. A test holds every codec to it.
_FULL = "failed to write whole buffer"
_FIRST_GUESS = 8  # most payloads shrink less than that, so one try is enough
_SMALLEST_GUESS_BYTES = 4096
_GZIP_DEFAULT_LEVEL = 6  # what Kafka's -1 means to zlib


class BufferTooSmall(Exception):
    """The decompressed data is larger than the buffer."""


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data`; `level` as in `compression.<codec>.level`, None for the default of the
    codec."""
    return data if codec == NONE else _CODECS[codec].compress(data, level)


def decompress(codec: int, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress `data` to at most `limit_bytes` (returns `data` itself for codec 0).

    Raises KafkaError: MESSAGE_TOO_LARGE past the limit, CORRUPT_MESSAGE for damaged input,
    UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    return data if codec == NONE else unpack(codec, data, limit_bytes)


def unpack(codec: int, data: Buffer, limit_bytes: int) -> bytearray:
    """Decompress `data`, which is compressed, into larger and larger buffers: the formats need not
    contain the decompressed size. See `decompress`."""
    size = max(_SMALLEST_GUESS_BYTES, len(data) * _FIRST_GUESS)
    while True:
        out = bytearray(min(size, limit_bytes))
        try:
            written = decompress_into(codec, data, out)
        except BufferTooSmall:
            failure = _too_large(limit_bytes) if size >= limit_bytes else None
        except KafkaError as error:
            failure = KafkaError(error.code, error.message)
        else:
            del out[written:]
            return out
        # First, in this thread: with the traceback of a failure the event loop would free it, which
        # takes milliseconds for 64 MiB.
        del out
        if failure is not None:
            raise failure
        size *= 4


def decompress_into(codec: int, data: Buffer, out: Any) -> int:
    """Decompress `data`, which is compressed, into the writable buffer `out`; return how many bytes
    it has.

    Raises BufferTooSmall, and KafkaError as `decompress` does.
    """
    found = _CODECS.get(codec)
    if found is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")
    try:
        return found.decompress(memoryview(data), out)
    except cramjam.DecompressionError as wrong:
        if _FULL in str(wrong):
            raise BufferTooSmall from None
        text = f"the {found.name} data is damaged: {wrong}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None


def _too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch unpacks to more than {limit_bytes} bytes"
    )


def _gzip(data: Buffer, level: int | None) -> bytes:
    gzip_level = _GZIP_DEFAULT_LEVEL if level is None or level < 0 else level
    return bytes(cramjam.gzip.compress(data, gzip_level))


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    frame.compress(bytes(data))  # it takes nothing else
    return bytes(frame.finish())


def _compress_snappy(data: Buffer, _level: int | None) -> bytearray:
    out = bytearray(_XERIAL_HEAD)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        out += _INT.pack(len(block))
        out += memoryview(block)
    return out


def _unpack_snappy(data: memoryview, target: Any) -> int:
    out = memoryview(target)
    if data[:8] != _XERIAL_MAGIC:
        return _unpack_snappy_block(data, out)
    pos = blocks = written = 0
    while pos < len(data):
        if data[pos : pos + 8] == _XERIAL_MAGIC:  # also of a stream that follows
            pos += len(_XERIAL_HEAD)
            continue
        blocks += 1
        if blocks > _FREE_BLOCKS + len(out) // _BLOCK_BYTES_MIN:
            raise BufferTooSmall
        if pos + 4 > len(data):
            raise cramjam.DecompressionError("a block length is cut off")
        (length,) = _INT.unpack_from(data, pos)
        pos += 4
        if not 0 < length <= len(data) - pos:
            raise cramjam.DecompressionError(f"a block of {length} bytes does not fit")
        written += _unpack_snappy_block(data[pos : pos + length], out[written:])
        pos += length
    return written


def _unpack_snappy_block(block: memoryview, out: memoryview) -> int:
    size = cramjam.snappy.decompress_raw_len(block)  # the block's first bytes say it
    if size > len(out):
        raise BufferTooSmall
    return cramjam.snappy.decompress_raw_into(block, out[:size])


def _gunzip(data: memoryview, out: Any) -> int:
    try:
        return cramjam.gzip.decompress_into(data, out)
    except cramjam.DecompressionError as wrong:
        if _FULL in str(wrong):
            raise
        end = _gzip_end(data, len(out))
        if end == len(data):
            raise
    return cramjam.gzip.decompress_into(data[:end], out)


def _gzip_end(data: memoryview, limit_bytes: int) -> int:
    """Return where the members of a gzip stream end, as Java's GZIPInputStream finds it: what does
    not begin like one after the first is ignored. DecompressionError for a damaged member."""
    end = size = 0
    while not end or (len(data) - end > _GZIP_BYTES_MIN and data[end : end + 3] == _GZIP_MAGIC):
        member = zlib.decompressobj(wbits=31)
        more: Buffer = b""
        while not member.eof:
            if not more:
                more = data[end : end + _GZIP_STEP_BYTES]
                end += len(more)
            try:
                part = member.decompress(more, 64 * _GZIP_STEP_BYTES)
            except zlib.error as wrong:
                raise cramjam.DecompressionError(str(wrong)) from None
            size += len(part)
            if size > limit_bytes:
                raise BufferTooSmall
            more = member.unconsumed_tail
            if not (part or more or member.eof) and end == len(data):
                raise cramjam.DecompressionError("unexpected end of file")
        end -= len(member.unused_data)
    return end


def is_linked_lz4(data: Buffer) -> bool:
    """Return whether the blocks of an LZ4 frame need those before them, which Kafka refuses."""
    return len(data) > 4 and not data[4] & _LZ4_INDEPENDENT


def _unpack_lz4(data: memoryview, out: Any) -> int:
    return cramjam.lz4.decompress_into(_first_lz4_frame(data, len(out)), out)


def _first_lz4_frame(data: memoryview, limit_bytes: int) -> memoryview:
    """Return the first frame of `data`. DecompressionError if it has none that is whole."""
    try:
        magic, flags, _ = _LZ4_HEAD.unpack_from(data)
        if magic != _LZ4_MAGIC:
            raise cramjam.DecompressionError("it does not begin with a frame")
        pos = _LZ4_HEAD.size + 1  # with the checksum of the head
        pos += 8 * bool(flags & _LZ4_SIZE) + 4 * bool(flags & _LZ4_DICTIONARY)
        for _ in range(_FREE_BLOCKS + limit_bytes // _BLOCK_BYTES_MIN):
            (length,) = _LZ4_BLOCK.unpack_from(data, pos)
            pos += 4
            if not length:
                return data[: pos + (flags & 4)]  # the checksum of the content: flag and length
            pos += (length & ~_LZ4_STORED) + (flags & _LZ4_BLOCK_SUM) // 4
    except StructError:
        raise cramjam.DecompressionError("a frame is cut off") from None
    raise BufferTooSmall


class _Codec(NamedTuple):
    """A codec: how it compresses, with a level, and decompresses into a buffer. `packed_at_once`:
    packed bytes that are unpacked without a pause. `since`: the first version of Produce whose
    batches may use it."""

    name: str
    compress: Callable[[Buffer, int | None], Buffer]
    decompress: Callable[[memoryview, Any], int]
    packed_at_once: int
    since: int = 0


# Packed bytes that are many members, frames or elements of almost nothing take 2 ms (gzip: three
# microseconds each), of snappy 4 ms.
_CODECS = {
    GZIP: _Codec("gzip", _gzip, _gunzip, 24 << 10),
    SNAPPY: _Codec("snappy", _compress_snappy, _unpack_snappy, 576 << 10),
    LZ4: _Codec("lz4", _compress_lz4, _unpack_lz4, 2 << 20),
    ZSTD: _Codec(
        "zstd",
        lambda data, level: bytes(cramjam.zstd.compress(data, level)),
        cramjam.zstd.decompress_into,
        256 << 10,
        since=7,
    ),
}

CODEC_NAMES = ("none", *(each.name for each in _CODECS.values()))
"""Codec id -> its name in `compression.type` (which also knows `uncompressed` and `producer`)."""


def name_codec(codec: int) -> str:
    """Return the name of a codec, or a text with its number if there is no such codec."""
    return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"codec {codec}"


PACKED_AT_ONCE = {codec: each.packed_at_once for codec, each in _CODECS.items()}
"""Packed bytes of each codec that are unpacked without a pause."""

ALL_CODECS_FROM = max(each.since for each in _CODECS.values())
"""The first version of Produce whose batches may use every codec."""


def produce_version(codec: int) -> int:
    """Return the first version of Produce whose batches may use a codec; 0 if there is no such
    codec, which is found when the batch is checked."""
    return _CODECS[codec].since if codec in _CODECS else 0


def refusal_of(codec: int, packed: Buffer) -> str | None:
    """Return why Kafka takes no such data of a codec from a producer; None if it does."""
    if codec == LZ4 and is_linked_lz4(packed):
        return "the blocks of the lz4 data depend on each other"
    return None
