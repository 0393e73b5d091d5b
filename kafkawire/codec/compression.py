"""The four codecs of record batches: gzip, snappy, lz4, zstd, through cramjam.

Decompression is bounded: it writes into a buffer of a chosen size and stops when that is full, so a
decompression bomb costs at most the limit. Snappy is read raw and in snappy-java's framing (magic,
two int32 versions, then int32-prefixed raw blocks) and written in that framing, which every client
reads. LZ4 frames are written with independent blocks: Kafka's Java reader takes no others.

Not here: the codec id in a batch head (`codec.batches`) and the `compression.type` of a topic
(`codec.validate`).
"""

from collections.abc import Callable
from struct import Struct

import cramjam

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""Codec ids: bits 0-2 of a batch's attributes."""

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Codec id -> its name in `compression.type` (which also knows `uncompressed` and `producer`)."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEAD = _XERIAL_MAGIC + b"\0\0\0\x01\0\0\0\x01"  # version 1, compatible with 1
_XERIAL_BLOCK_BYTES = 32 * 1024  # snappy-java's own block size
_INT = Struct(">i")
_FREE_BLOCKS = 500
_BLOCK_BYTES_MIN = 4096
"""Blocks of a framed stream that may be shorter than this are FREE_BLOCKS: each costs a microsecond
or two, whatever it holds. Writers fill them: snappy-java's have 32 KiB."""

# cramjam has one exception for everything; this text (Rust's for a full writer) tells a buffer
# that was too small from damaged input. A test holds every codec to it.
_FULL = "failed to write whole buffer"
_FIRST_GUESS = 4  # most payloads shrink less than fourfold, so one try is enough
_SMALLEST_GUESS_BYTES = 4096
_GZIP_DEFAULT_LEVEL = 6  # what Kafka's -1 means to zlib


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data`; `level` as in `compression.<codec>.level`, None for the default of the
    codec."""
    if codec == GZIP:
        gzip_level = _GZIP_DEFAULT_LEVEL if level is None or level < 0 else level
        return bytes(cramjam.gzip.compress(data, gzip_level))
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))  # it takes nothing else
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level))
    assert codec == NONE, codec
    return data


def decompress(codec: int, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress `data` to at most `limit_bytes` (returns `data` itself for codec 0).

    Raises KafkaError: MESSAGE_TOO_LARGE past the limit, CORRUPT_MESSAGE for damaged input,
    UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    return data if codec == NONE else unpack(codec, data, limit_bytes)


def unpack(codec: int, data: Buffer, limit_bytes: int) -> bytes | bytearray:
    """Decompress `data`, which is compressed; see `decompress`."""
    try:
        if codec == GZIP:
            return _grow(cramjam.gzip.decompress_into, data, limit_bytes)
        if codec == SNAPPY:
            return _decompress_snappy(memoryview(data), limit_bytes)
        if codec == LZ4:
            return _grow(cramjam.lz4.decompress_into, data, limit_bytes)
        if codec == ZSTD:
            return _grow(cramjam.zstd.decompress_into, data, limit_bytes)
    except cramjam.DecompressionError as wrong:
        text = f"the {CODEC_NAMES[codec]} data is damaged: {wrong}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")


def _grow(into: Callable[[Buffer, bytearray], int], data: Buffer, limit_bytes: int) -> bytearray:
    """Decompress into larger and larger buffers: the formats need not contain the decompressed
    size.

    Each is four times the one before, so all tries together cost little more than the last.
    """
    size = max(_SMALLEST_GUESS_BYTES, len(data) * _FIRST_GUESS)
    while True:
        out = bytearray(min(size, limit_bytes))
        try:
            written = into(data, out)
        except cramjam.DecompressionError as wrong:
            if _FULL not in str(wrong):
                raise
        else:
            del out[written:]
            return out
        if size >= limit_bytes:
            raise _too_large(limit_bytes)
        size *= 4


def _too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch unpacks to more than {limit_bytes} bytes"
    )


def _compress_snappy(data: Buffer) -> bytearray:
    out = bytearray(_XERIAL_HEAD)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        out += _INT.pack(len(block))
        out += memoryview(block)
    return out


def _decompress_snappy(data: memoryview, limit_bytes: int) -> bytearray:
    if data[:8] != _XERIAL_MAGIC:
        return _snappy_block(data, limit_bytes)
    out = bytearray()
    pos = len(_XERIAL_HEAD)
    blocks = 0
    while pos < len(data):
        blocks += 1
        if blocks > _FREE_BLOCKS + limit_bytes // _BLOCK_BYTES_MIN:
            raise _too_large(limit_bytes)
        if pos + 4 > len(data):
            raise cramjam.DecompressionError("a block length is cut off")
        (length,) = _INT.unpack_from(data, pos)
        pos += 4
        if not 0 < length <= len(data) - pos:
            raise cramjam.DecompressionError(f"a block of {length} bytes does not fit")
        out += _snappy_block(data[pos : pos + length], limit_bytes - len(out))
        pos += length
    return out


def _snappy_block(block: memoryview, limit_bytes: int) -> bytearray:
    size = cramjam.snappy.decompress_raw_len(block)  # the block's first bytes say it
    if size > limit_bytes:
        raise _too_large(limit_bytes)
    raw = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(block, raw)
    del raw[written:]
    return raw
