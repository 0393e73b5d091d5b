"""The repeated shape of a connection's Produce requests, cached so that only batches are parsed.

A producer repeats the bytes around its batches: API, version, client id, acks, topic. A Shape
caches those, and the bytes of the response around its offsets, so that such a request needs one
comparison instead of decoding and encoding (`produce.repeat`); for other requests the comparison
fails, and they take the general way. No check is skipped: the batch passes through Partition.queue
like every other.

Shapes are derived from bytes that `messages.flat_produce` reads and writes, so a new version of
Produce needs no change here. Pure. Used by `produce.repeat` alone.

The bytes of a request of one batch:

    size i32 | API, version 4s | correlation id i32 | known | index i32 | length | batch | tail

`length` is an i32, or from v9 on a varint of one more; `tail` is empty, or then three empty tag
sections.
"""

from __future__ import annotations

from struct import Struct

from kafkawire.codec.compression import ALL_CODECS_FROM
from kafkawire.codec.flat import Tags, Topic
from kafkawire.codec.varint import read_uvarint
from kafkawire.handlers.exchange import frame
from kafkawire.messages.flat_produce import (
    FLEXIBLE_FROM,
    ProduceItem,
    ProduceResult,
    write_response,
)

SHAPES_FROM = ALL_CODECS_FROM
"""Older requests need a check of the codec, so they have no shape."""

KNOWN_BYTES_MAX = 1 << 10
"""Maximum length of topic and client id, which are compared for each request."""

SHARED_MAX = 256
"""Maximum number of shapes kept for other connections: half a megabyte, and more topics and client
ids than the processor's caches hold."""

Found = tuple[int, int, int, int, int]
"""(correlation id, partition index, where the batch starts and stops, where the frame ends)."""

_KNOWN_AT = 12
_SPLIT = 0x33445566  # marker values of the partition index and the offsets in a response
_MARKS = (0x1122334455667788, 0x2233445566778899, 0x33445566778899AA)
_INDEX = Struct(">i")
_OFFSETS = Struct(">qqq")  # base offset, append time, log start: adjacent in v5+
_NO_ERROR = b"\0\0"


class Shape:
    """A repeated request without its batch, partition and correlation id; and its response.

    `read` unpacks (size, API and version, correlation id, known, index, length) of a frame; in a
    flexible version `length` is only its first byte. `fixed_bytes` is the length of that. `write`
    takes (answer_bytes, correlation id, before, index, 0, base offset, append time, log start,
    after) and packs the whole response of a success.
    """

    __slots__ = (
        "_answer",
        "acks",
        "after",
        "answer_bytes",
        "api",
        "before",
        "fixed_bytes",
        "flexible",
        "known",
        "read",
        "topic",
        "version",
        "write",
    )

    def __init__(self, version: int, api: bytes, known: bytes, acks: int, topic: Topic) -> None:
        self.version = version
        self.flexible = version >= FLEXIBLE_FROM
        self.api = api
        self.known = known
        self.acks = acks
        self.topic = topic
        head = Struct(f">i4si{len(known)}si{'B' if self.flexible else 'i'}")
        self.read = head.unpack_from
        self.fixed_bytes = head.size
        body = write_response([(topic, _SPLIT, 0, *_MARKS, None, ())], version)
        before, rest = body.rsplit(_INDEX.pack(_SPLIT) + _NO_ERROR, 1)
        offsets, after = rest[: _OFFSETS.size], rest[_OFFSETS.size :]
        assert offsets == _OFFSETS.pack(*_MARKS), "an answer is index, error, offsets"
        self.before = b"\0" + before if self.flexible else before
        self.after = after
        self._answer = Struct(f">ii{len(self.before)}sihqqq{len(after)}s")
        self.answer_bytes = self._answer.size - 4
        self.write = self._answer.pack

    def find(self, buf: memoryview, pos: int, end: int, most: int) -> list[Found]:
        """Return the complete frames from `pos` on in buf[:end] that repeat this request with
        another batch, at most `most`. Hot."""
        read, api, known, fixed_bytes = self.read, self.api, self.known, self.fixed_bytes
        found: list[Found] = []
        start = pos + fixed_bytes
        while start <= end and len(found) < most:
            size, its_api, number, its_known, index, length = read(buf, pos)
            last = pos + 4 + size
            if its_known != known or its_api != api or last > end:
                break
            if not self.flexible:
                stop = start + length
                if stop != last or stop < start:
                    break
            else:
                if length > 0x7F:
                    length, start = read_uvarint(buf, start - 1)
                stop = start + length - 1
                if stop + 3 != last or stop < start or buf[stop] | buf[stop + 1] | buf[stop + 2]:
                    break
            found.append((number, index, start, stop, last))
            pos = last
            start = pos + fixed_bytes
        return found

    def add_throttle_time(self, answer: bytes, throttle_ms: int) -> bytes:
        """Return a response frame with a throttle time, which is its last field."""
        end = len(answer) - self.flexible  # an empty section of tags
        return b"".join((answer[: end - _INDEX.size], _INDEX.pack(throttle_ms), answer[end:]))

    def index_of(self, answer: bytes) -> int:
        """Return the partition index of the response frame of a success."""
        index: int = self._answer.unpack(answer)[3]
        return index

    def build_failed_result(
        self, answer: bytes, code: int, message: str | None, errors: tuple[tuple[int, str], ...]
    ) -> ProduceResult:
        """Return the result of a failure, in place of that of `answer`."""
        return self.topic, self.index_of(answer), code, -1, -1, -1, message, errors

    def failure(
        self, answer: bytes, result: ProduceResult, throttle_ms: int, tags: Tags | None
    ) -> bytes:
        """Return the response frame of a failure, in place of that of `answer`."""
        number = self._answer.unpack(answer)[1]
        body = write_response([result], self.version, throttle_ms, tags)
        return frame(number, body, self.flexible)


class Shapes:
    """The shapes of all connections. Equal ones are one object: with thousands of connections of
    one program the processor's caches hold it."""

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        self._shared: dict[tuple[int, bytes], Shape] = {}  # by version and known bytes

    def cut(
        self, version: int, buf: memoryview, pos: int, end: int, item: ProduceItem, acks: int
    ) -> Shape | None:
        """Return the shape of the request in buf[pos:end] with its only item, or None."""
        topic, index, start, stop = item
        if version < SHAPES_FROM or start < 0:
            return None
        size = 4
        if version >= FLEXIBLE_FROM:
            size = max(1, ((stop - start + 1).bit_length() + 6) // 7)
        known = bytes(buf[pos + _KNOWN_AT : start - size - _INDEX.size])
        if len(known) > KNOWN_BYTES_MAX:
            return None
        shared = self._shared.get((version, known))
        shape = shared or Shape(version, bytes(buf[pos + 4 : pos + 8]), known, acks, topic)
        # A request with tagged fields does not end after its batch: it has no shape.
        found = shape.find(buf, pos, end, 1)
        if not found or found[0][1:] != (index, start, stop, end):
            return None
        if shared is None:
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[version, known] = shape
        return shape
