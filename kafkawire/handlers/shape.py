"""What stays the same from one Produce of a connection to the next.

A producer that writes to one partition sends the same bytes again and again: acks, topic, index.
Only the batch differs. A Shape remembers those bytes with the partition they mean and the bytes
of the answer around its offsets, so that such a request costs one comparison instead of decoding
and encoding; any other request takes the general way and costs one failed comparison more. No
check is left out: the batch goes through Partition.append like every other.

Shapes are cut out of what `codec.produce` reads and writes, so the wire is described only there.
Pure. Used by `handlers.produce` alone.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from kafkawire.codec.produce import (
    FLEXIBLE_FROM,
    ProduceItem,
    ProduceResult,
    write_response,
)
from kafkawire.codec.varint import read_uvarint

if TYPE_CHECKING:
    from log.partition import Partition

SHAPES_FROM = 7
"""Older requests need a check of their own for zstd, so they have no shape."""

_LENGTH = Struct(">i")
_OFFSETS = Struct(">qqq")  # base offset, append time, log start: they lie together in v5+
_MARKS = (0x1122334455667788, 0x2233445566778899, 0x33445566778899AA)
_HEAD = Struct(">ii")
_TAIL = b"\0\0\0"  # no tags behind the partition, the topic, the request


class Shape:
    """One connection's repeated request: `prefix` up to the batch's length, and its answer."""

    __slots__ = (
        "acks",
        "after",
        "answer_bytes",
        "before",
        "index",
        "partition",
        "prefix",
        "size",
        "topic",
        "version",
    )  # fmt: skip

    def __init__(
        self, version: int, prefix: bytes, acks: int, item: ProduceItem, partition: Partition
    ) -> None:
        self.version = version
        self.prefix = prefix
        self.size = len(prefix)
        self.acks = acks
        self.partition = partition
        self.topic, self.index = item[0], item[1]
        body = write_response([(self.topic, self.index, 0, *_MARKS, None, ())], version)
        before, after = body.split(_OFFSETS.pack(*_MARKS))
        self.before = b"\0" + before if version >= FLEXIBLE_FROM else before
        self.after = after
        self.answer_bytes = 4 + len(self.before) + _OFFSETS.size + len(after)

    def find(self, buf: memoryview, pos: int, end: int) -> tuple[int, int] | None:
        """Where the batch lies, if buf[pos:end] is this request with another batch."""
        at = pos + self.size
        if buf[pos:at] != self.prefix or at + 4 > end:
            return None
        if self.version < FLEXIBLE_FROM:
            if _LENGTH.unpack_from(buf, at)[0] != end - at - 4:
                return None
            return at + 4, end
        length, at = read_uvarint(buf, at)
        stop = at + length - 1
        if stop + 3 != end or length < 1 or buf[stop:end] != _TAIL:
            return None
        return at, stop

    def answer(self, correlation_id: int, base: int, time_ms: int, log_start: int) -> bytes:
        """The whole answer frame of a success."""
        return b"".join(
            (
                _HEAD.pack(self.answer_bytes, correlation_id),
                self.before,
                _OFFSETS.pack(base, time_ms, log_start),
                self.after,
            )
        )

    def result(self, code: int, message: str | None, errors: tuple[tuple[int, str], ...]) -> bytes:
        """The body of a failure's answer."""
        failed: ProduceResult = (self.topic, self.index, code, -1, -1, -1, message, errors)
        return write_response([failed], self.version)


def cut_shape(
    version: int, buf: memoryview, pos: int, item: ProduceItem, acks: int, partition: Partition
) -> Shape | None:
    """The shape of a request at `pos` that has the one item, or None where it has none."""
    _, _, start, stop = item
    if version < SHAPES_FROM:
        return None
    size = 4
    if version >= FLEXIBLE_FROM:
        size = max(1, ((stop - start + 1).bit_length() + 6) // 7)
    shape = Shape(version, bytes(buf[pos : start - size]), acks, item, partition)
    end = stop + (3 if version >= FLEXIBLE_FROM else 0)
    # A request with tagged fields does not end where its batch does: it has no shape.
    return shape if end <= len(buf) and shape.find(buf, pos, end) == (start, stop) else None
