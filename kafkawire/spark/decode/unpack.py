"""Decompress batches one after another into one reused buffer of bounded size.

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
"""Batches are decompressed up to this size before their records are read, so that these are in the
CPU cache."""
_KEPT_BYTES = 16 * 1024 * 1024
"""A buffer that grew beyond this size for one batch is not reused."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEAD_BYTES = 16
_INT = Struct(">i")
_FULL = "failed to write whole buffer"  # message of cramjam (Rust) for a buffer that is too small


class NoRoom(Exception):
    """The buffer is large enough for this batch, but not in addition to its content."""


class Unpacker:
    """`data[:used]`: the bytes decompressed since `clear`."""

    def __init__(self) -> None:
        self.data = np.empty(2 * GROUP_BYTES, np.uint8)
        self.used = 0

    @property
    def address(self) -> int:
        """Address of `data`."""
        return self.data.ctypes.data

    def clear(self) -> None:
        """Empty the buffer after everything in it was read."""
        self.used = 0
        if len(self.data) > _KEPT_BYTES:
            self.data = np.empty(2 * GROUP_BYTES, np.uint8)

    @property
    def is_full(self) -> bool:
        """Whether the buffer should be read and cleared before more is added."""
        return self.used >= GROUP_BYTES

    def add(self, codec: int, packed: memoryview, limit_bytes: int) -> tuple[int, int]:
        """Decompress a batch's records; return their position in `data`.

        Raises NoRoom if `clear` must be called first, and KafkaError as
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
    size = cramjam.snappy.decompress_raw_len(block)  # from the block's first bytes
    if size > len(out):
        raise cramjam.DecompressionError(_FULL)
    return cramjam.snappy.decompress_raw_into(block, out[:size])


_INTO: dict[int, Callable[[Any, Any], int]] = {
    GZIP: cramjam.gzip.decompress_into,
    SNAPPY: _unpack_snappy,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
