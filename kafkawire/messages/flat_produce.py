"""Flat codec of Produce: the hot request and response without an object per topic and partition.

The declarations in `messages.produce` alone say which fields a version has: what a response is
packed with is derived from them, and a test compares both byte for byte in every version. Here a
request becomes one list of tuples whose batches are (start, stop) positions in the receive buffer,
so nothing is copied before it is written to the log; a response is packed directly from the
results.

Reader and writer are steps (generators), as in `codec.fetch`: one step is all of a request of up to
MAX_ITEMS partitions.

Sources: ProduceRequest.json, ProduceResponse.json (v3-13); KIP-467 (record errors), KIP-951.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from struct import Struct, error
from typing import Final

from kafkawire.codec.batches import HEAD_BYTES, MAGIC, TRANSACTIONAL
from kafkawire.codec.compile import DecodeError, part_encoder
from kafkawire.codec.compile_decode import MAX_STRING_BYTES, allowed_elements
from kafkawire.codec.flat import Tags, Topic, put_count, put_topic, skip_tags
from kafkawire.codec.schema import fields_in, fields_of, info_of
from kafkawire.codec.types import Buffer
from kafkawire.codec.varint import read_uvarint
from kafkawire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


def _first_version(cls: type, field_name: str) -> int:
    """Return the first version with a field."""
    return next(each.since for each in fields_of(cls) if each.name == field_name)


FLEXIBLE_FROM: Final = info_of(ProduceRequest).flexible_from or 0
TOPIC_IDS_FROM: Final = _first_version(TopicProduceData, "topic_id")
LEADERS_FROM: Final = _first_version(PartitionProduceResponse, "current_leader")
"""The first version of responses that name the leader to turn to (KIP-951)."""


ProduceItem = tuple[Topic, int, int, int]
"""(topic, index, start, stop): one partition's batch in [start, stop); start < 0 means null.
A plain tuple, here and below: one is made for each batch of each request."""

RecordErrors = tuple[tuple[int, str], ...]
"""Which records of a batch were refused, by their number in it, and why (KIP-467)."""

ProduceResult = tuple[Topic, int, int, int, int, int, str | None, RecordErrors]
"""(topic, index, error code, base offset, log append time in ms, log start offset, message,
record errors): the response for one partition. Offsets are -1 where there was an error."""


MAX_ITEMS: Final = 64
"""Partitions of a request that are decoded and appended in one step, in less than a millisecond."""

MAX_TAGGED: Final = 16
"""Partitions and topics with tagged fields, up to MAX_TAGS in each, that are read in one step."""


@dataclass(slots=True)
class ProduceAsk:
    """One Produce request. `left`: how many array elements may still come while it is decoded.

    The timeout is skipped: a client ends its wait itself, at its request.timeout.ms.
    """

    transactional_id: str | None = None
    acks: int = 0
    items: list[ProduceItem] = field(default_factory=list)
    left: int = 0


_FIXED: Final = Struct(
    ">hhii"
)  # transactional id length, acks, timeout, topics (when the id is null)
_ACKS: Final = Struct(">hi")
_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_PARTITION: Final = Struct(">ii")  # index, records length


def read_request(
    ask: ProduceAsk, buf: memoryview, pos: int, end: int, version: int
) -> Generator[None, None, None]:
    """Decode the request body in buf[pos:end] into `ask`, which is empty: all but its partitions in
    the first step. DecodeError for any length that exceeds the available bytes."""
    ask.left = allowed_elements(end - pos)
    try:
        if version >= FLEXIBLE_FROM:
            pos = yield from _read_flexible(ask, buf, pos, end, version)
        else:
            pos = yield from _read_plain(ask, buf, pos, end)
    except (error, IndexError, UnicodeDecodeError) as wrong:
        raise DecodeError(f"Produce request: {wrong}") from None
    if pos > end:
        raise DecodeError("Produce request ends before its fields do")


_MAGIC_AT, _ATTRIBUTES_LOW_BYTE = 16, 22  # from the start of a batch


def is_transactional(buf: memoryview, start: int, stop: int) -> bool:
    """Return whether buf[start:stop] begins with the head of a transactional batch."""
    return (
        stop - start >= HEAD_BYTES
        and bool(buf[start + _ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL)
        and buf[start + _MAGIC_AT] == MAGIC
    )


def has_transactional(buf: memoryview, items: list[ProduceItem]) -> bool:
    """Return whether one of the batches of a request is transactional. Hot."""
    for _, _, start, stop in items:
        if (
            stop - start >= HEAD_BYTES
            and buf[start + _ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL
            and buf[start + _MAGIC_AT] == MAGIC
        ):
            return True
    return False


def _read_plain(ask: ProduceAsk, buf: memoryview, pos: int, end: int) -> Generator[None, None, int]:
    items = ask.items
    length, ask.acks, _timeout_ms, topics = _FIXED.unpack_from(buf, pos)
    pos += 12
    if length >= 0:
        pos -= 10
        ask.transactional_id, pos = _text(buf, pos, pos + length, end)
        ask.acks, _timeout_ms = _ACKS.unpack_from(buf, pos)
        (topics,) = _INT.unpack_from(buf, pos + 6)
        pos += 10
    _check_count(ask, topics, end - pos, 6)
    for number in range(topics):
        if number and number % MAX_ITEMS == 0:
            yield
        (length,) = _SHORT.unpack_from(buf, pos)
        if length < 0:
            raise DecodeError("Produce request: null topic name")
        topic, pos = _text(buf, pos + 2, pos + 2 + length, end)
        (partitions,) = _INT.unpack_from(buf, pos)
        pos += 4
        _check_count(ask, partitions, end - pos, 8)
        for _ in range(partitions):
            if items and len(items) % MAX_ITEMS == 0:
                yield
            index, length = _PARTITION.unpack_from(buf, pos)
            pos += 8
            if length < 0:
                items.append((topic, index, -1, -1))
                continue
            stop = pos + length
            if stop > end:
                raise DecodeError(f"Produce request: a batch of {length} bytes does not fit")
            items.append((topic, index, pos, stop))
            pos = stop
    return pos


def _read_flexible(  # noqa: C901 (hot: no calls)
    ask: ProduceAsk, buf: memoryview, pos: int, end: int, version: int
) -> Generator[None, None, int]:
    items, tagged = ask.items, 0
    length, pos = read_uvarint(buf, pos)
    if length:
        ask.transactional_id, pos = _text(buf, pos, pos + length - 1, end)
    ask.acks, _timeout_ms = _ACKS.unpack_from(buf, pos)
    topics, pos = read_uvarint(buf, pos + 6)
    topic: Topic
    _check_count(ask, topics - 1, end - pos, 3)
    for number in range(topics - 1):
        if tagged >= MAX_TAGGED or (number and number % MAX_ITEMS == 0):
            tagged = 0
            yield
        if version >= TOPIC_IDS_FROM:
            topic = bytes(buf[pos : pos + 16])
            pos += 16
        else:
            length, pos = read_uvarint(buf, pos)
            if not length:
                raise DecodeError("Produce request: null topic name")
            topic, pos = _text(buf, pos, pos + length - 1, end)
        partitions, pos = read_uvarint(buf, pos)
        _check_count(ask, partitions - 1, end - pos, 6)
        for _ in range(partitions - 1):
            if tagged >= MAX_TAGGED or (items and len(items) % MAX_ITEMS == 0):
                tagged = 0
                yield
            (index,) = _INT.unpack_from(buf, pos)
            length, pos = read_uvarint(buf, pos + 4)
            if not length:
                items.append((topic, index, -1, -1))
            else:
                stop = pos + length - 1
                if stop > end:
                    raise DecodeError(f"Produce request: a batch of {length - 1} bytes is cut off")
                items.append((topic, index, pos, stop))
                pos = stop
            if buf[pos] == 0:
                pos += 1
            else:
                pos = skip_tags(buf, pos, end)
                tagged += 1
        if buf[pos] == 0:
            pos += 1
        else:
            pos = skip_tags(buf, pos, end)
            tagged += 1
    return pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)


def _text(buf: memoryview, start: int, stop: int, end: int) -> tuple[str, int]:
    if stop > end:
        raise DecodeError(f"a string of {stop - start} bytes does not fit its request")
    if stop - start > MAX_STRING_BYTES:
        raise DecodeError(f"a string of {stop - start} bytes is too long")
    return str(buf[start:stop], "utf-8"), stop


def _check_count(ask: ProduceAsk, count: int, room: int, smallest: int) -> None:
    """Check that an array has not more elements than its remaining bytes and the size of the
    request allow; null is not allowed."""
    if count < 0 or count * smallest > room:
        raise DecodeError(f"Produce request: an array of {count} elements in {room} bytes")
    ask.left -= count
    if ask.left < 0:
        raise DecodeError("Produce request: too many elements for its size")


def write_response(
    results: list[ProduceResult], version: int, throttle_ms: int = 0, tags: Tags | None = None
) -> bytes:
    """Encode the response body, all steps of `encode_response` at once."""
    out = bytearray()
    for _ in encode_response(out, results, version, throttle_ms, tags):
        pass
    return bytes(out)


def encode_response(
    out: bytearray,
    results: list[ProduceResult],
    version: int,
    throttle_ms: int,
    tags: Tags | None,
) -> Generator[None, None, None]:
    """Append the response body to `out`. `results` are in the order of the request: those of one
    topic are adjacent. `tags` of partitions are for those with an error."""
    flexible = version >= FLEXIBLE_FROM
    layout = _layouts.get(version) or _Layout(version)
    stops = _ONE if len(results) == 1 else (yield from _topic_ends(results))
    put_count(out, len(stops), flexible)
    first = 0
    for stop in stops:
        topic = results[first][0]
        put_topic(out, topic, flexible)
        put_count(out, stop - first, flexible)
        for at in range(first, stop):
            result = results[at]
            _, index, code, base, time_ms, start, message, record_errors = result
            if message is None and not record_errors:
                out += layout.pack(index, code, base, time_ms, start)
                out += layout.rest
            else:
                out += layout.encode(result)
            if tags is not None and code:
                out[-1:] = tags[0].get((topic, index), b"\0")
            if (at + 1) % MAX_ITEMS == 0:
                yield
        if flexible:
            out.append(0)
        first = stop
    out += _INT.pack(throttle_ms)
    if flexible:
        out += b"\0" if tags is None else tags[1]


_ONE: Final = array("q", (1,))


def _topic_ends(results: list[ProduceResult]) -> Generator[None, None, array[int]]:
    """Return where the results of each topic end. An array, because freeing a list of as many
    numbers as a request can have topics would hold the event loop."""
    stops = array("q")
    for at in range(1, len(results) + 1):
        if at == len(results) or results[at][0] != results[at - 1][0]:
            stops.append(at)
        if at % MAX_ITEMS == 0:
            yield
    return stops


_WITH_START: Final = Struct(">ihqqq")
"""The leading fields of a partition's response: index, error code, base offset, log append time
and, since version 5, log start offset."""
_WITHOUT_START: Final = Struct(">ihqq")


def _pack_without_start(index: int, code: int, base: int, time_ms: int, _start: int) -> bytes:
    return _WITHOUT_START.pack(index, code, base, time_ms)


class _Layout:
    """How the response for a partition is packed in one version: its leading numbers, and after
    them the bytes of all other fields where nothing was refused. `pack` takes all five numbers."""

    __slots__ = ("_encode", "_says_why", "pack", "rest")

    def __init__(self, version: int) -> None:
        names = [each.name for each in fields_in(PartitionProduceResponse, version)]
        has_start = "log_start_offset" in names
        self._says_why = "error_message" in names
        self._encode = part_encoder(ProduceResponse, PartitionProduceResponse, version)
        self.pack: Callable[[int, int, int, int, int], bytes]
        self.pack = _WITH_START.pack if has_start else _pack_without_start
        numbers = 0x11223344, 0x2233, 3, 4, 5
        encoded = self._encode_partition(PartitionProduceResponse(*numbers))
        packed = self.pack(*numbers)
        # Fails in the tests of a version that declares other leading fields.
        assert encoded.startswith(packed), names
        self.rest = encoded[len(packed) :]
        _layouts[version] = self

    def encode(self, result: ProduceResult) -> bytes:
        """Encode a response with a message or record errors, as far as the version has them."""
        _, index, code, base, time_ms, start, message, record_errors = result
        if not self._says_why:
            return self.pack(index, code, base, time_ms, start) + self.rest
        refused = [BatchIndexAndErrorMessage(*each) for each in record_errors]
        return self._encode_partition(
            PartitionProduceResponse(index, code, base, time_ms, start, refused, message)
        )

    def _encode_partition(self, response: PartitionProduceResponse) -> bytes:
        parts: list[Buffer] = []
        self._encode(response, parts)
        return b"".join(parts)


_layouts: Final[dict[int, _Layout]] = {}
