"""Decompress batches one after another into one reused buffer of bounded size.

The bytes are written where the loops over records read them, without an object for each batch.
"""

from __future__ import annotations

import numpy as np

from kafkawire.codec.compression import BufferTooSmall, decompress_into
from kafkawire.codec.errors import ErrorCode, KafkaError

GROUP_BYTES = 256 * 1024
"""Batches are decompressed up to this size before their records are read, so that these are in the
CPU cache."""
_KEPT_BYTES = 16 * 1024 * 1024
"""A buffer that grew beyond this size for one batch is not reused."""


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
        while True:
            start = self.used
            out = self.data[start : start + limit_bytes]
            try:
                self.used = start + decompress_into(codec, packed, out)
            except BufferTooSmall:
                pass
            else:
                return start, self.used
            if len(out) >= limit_bytes:
                text = f"the batch unpacks to more than {limit_bytes} bytes"
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
            if start:
                raise NoRoom
            self.data = np.empty(min(4 * len(self.data), limit_bytes), np.uint8)
