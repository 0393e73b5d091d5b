"""Decompression of batches one after the other into one reused buffer of bounded size.

Codecs and snappy framing are as in `kafkawire.codec.compression`, but the bytes are written where
the loops over records read them, without an object for each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import cramjam
import numpy as np

from kafkawire.codec.compression import CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD
from kafkawire.codec.errors import ErrorCode, KafkaError

GROUP_BYTES = 256 * 1024
"""Batches are unpacked up to here before their records are read: these then are in the cache."""
_KEPT_BYTES = 16 * 1024 * 1024
"""A buffer that grew beyond this for one batch is not kept for the next."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEAD_BYTES = 16
_INT = Struct(">i")
_FULL = "failed to write whole buffer"  # cramjam's (Rust's) words for a buffer that is too small


class NoRoom(Exception):
    """The buffer is large enough, but not for this batch in addition to its content."""


class Unpacker:
    """`data[:used]` holds what was unpacked since `clear`."""

    def __init__(self) -> None:
        self.data = np.empty(2 * GROUP_BYTES, np.uint8)
        self.used = 0

    @property
    def address(self) -> int:
        """Where `data` lies."""
        return self.data.ctypes.data

    def clear(self) -> None:
        """Everything in the buffer has been read."""
        self.used = 0
        if len(self.data) > _KEPT_BYTES:
            self.data = np.empty(2 * GROUP_BYTES, np.uint8)

    @property
    def is_full(self) -> bool:
        """True if the buffer should be read and cleared before more is added."""
        return self.used >= GROUP_BYTES

    def add(self, codec: int, packed: memoryview, limit_bytes: int) -> tuple[int, int]:
        """Unpack a batch's records; where in `data` they are.

        Raises NoRoom if `clear` must come first, and KafkaError as
        `codec.compression.decompress` does.
        """
        into = _INTO.get(codec)
        if into is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")
        while True:
            start = self.used
            out = self.data[start : start + limit_bytes]
            try:
                self.used = start + into(packed, out)
            except cramjam.DecompressionError as wrong:
                if _FULL not in str(wrong):
                    text = f"the {CODEC_NAMES[codec]} data is damaged: {wrong}"
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from None
            else:
                return start, self.used
            if len(out) >= limit_bytes:
                text = f"the batch unpacks to more than {limit_bytes} bytes"
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
            if start:
                raise NoRoom
            self.data = np.empty(min(4 * len(self.data), limit_bytes), np.uint8)


def _unpack_snappy(packed: memoryview, out: Any) -> int:
    if packed[:8] != _XERIAL_MAGIC:
        return _unpack_block(packed, out)
    pos, written = _XERIAL_HEAD_BYTES, 0
    while pos < len(packed):
        if pos + 4 > len(packed):
            raise cramjam.DecompressionError("a block length is cut off")
        (length,) = _INT.unpack_from(packed, pos)
        pos += 4
        if not 0 < length <= len(packed) - pos:
            raise cramjam.DecompressionError(f"a block of {length} bytes does not fit")
        written += _unpack_block(packed[pos : pos + length], out[written:])
        pos += length
    return written


def _unpack_block(block: memoryview, out: Any) -> int:
    size = cramjam.snappy.decompress_raw_len(block)  # the block's first bytes say it
    if size > len(out):
        raise cramjam.DecompressionError(_FULL)
    return cramjam.snappy.decompress_raw_into(block, out[:size])


_INTO: dict[int, Callable[[Any, Any], int]] = {
    GZIP: cramjam.gzip.decompress_into,
    SNAPPY: _unpack_snappy,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
