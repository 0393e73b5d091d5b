"""Flat codec of Produce: the hot request and response without an object per topic and partition.

The declarations in `messages.produce` describe the same format readably, and a test checks that
both are equal byte for byte in every version. Here a request becomes one list of tuples whose
batches are (start, stop) positions in the receive buffer, so nothing is copied before it is written
to the log; a response is packed directly from the results.

Reader and writer are steps (generators), as in `codec.fetch`: one step is all of a request of up to
MAX_ITEMS partitions.

Sources: ProduceRequest.json, ProduceResponse.json (v3-13); KIP-467 (record errors), KIP-951.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from dataclasses import dataclass, field
from struct import Struct, error
from typing import Final

from kafkawire.codec.batches import HEAD_BYTES, MAGIC, TRANSACTIONAL
from kafkawire.codec.compile import DecodeError
from kafkawire.codec.compile_decode import MAX_STRING_BYTES, allowed_elements
from kafkawire.codec.varint import put_uvarint, read_uvarint

Topic = str | bytes
"""A name up to v12, a 16-byte topic id from v13 (KIP-516)."""

FLEXIBLE_FROM: Final = 9  # as the declaration says, which is above this package: a test compares
TOPIC_IDS_FROM: Final = 13


ProduceItem = tuple[Topic, int, int, int]
"""(topic, index, start, stop): one partition's batch in [start, stop); start < 0 means null.
A plain tuple, here and below: one is made for each batch of each request."""

RecordErrors = tuple[tuple[int, str], ...]
"""Which records of a batch were refused, by their number in it, and why (KIP-467)."""

ProduceResult = tuple[Topic, int, int, int, int, int, str | None, RecordErrors]
"""(topic, index, error code, base offset, log append time in ms, log start offset, message,
record errors): the response for one partition. Offsets are -1 where there was an error."""


PartitionTags = dict[tuple[Topic, int], bytes]
"""Sections of tagged fields of the partitions that have some (KIP-951)."""

Tags = tuple[PartitionTags, bytes]
"""The tagged fields of partitions, and those of the response."""


MAX_ITEMS: Final = 64
"""Partitions of a request that are decoded and appended in one step, in less than a millisecond."""

MAX_TAGS = 64
"""Tagged fields in one place of a request; all of Kafka's have numbers below this."""

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


def skip_tags(buf: memoryview, pos: int, end: int) -> int:
    """Return the position after a tagged-field section (KIP-482) at `pos`; DecodeError if it is
    incomplete."""
    count, pos = read_uvarint(buf, pos)
    if count > MAX_TAGS:
        raise DecodeError(f"a section of {count} tagged fields")
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > end:
            raise DecodeError("a tagged field does not fit its request")
    return pos


def put_count(head: bytearray, count: int, flexible: bool) -> None:
    """Append the length of an array."""
    if flexible:
        put_uvarint(head, count + 1)
    else:
        head += _INT.pack(count)


def put_topic(head: bytearray, topic: Topic, flexible: bool) -> None:
    """Append the name or id of a topic."""
    if isinstance(topic, bytes):
        head += topic
        return
    name = topic.encode()
    if flexible:
        put_uvarint(head, len(name) + 1)
    else:
        head += _SHORT.pack(len(name))
    head += name


# index, error, base offset, append time [, log start v5 [, record errors 0, message null v8]]
_RESULT_V3 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
_RESULT_V8 = Struct(">ihqqqih")
_RESULT_FLEXIBLE: Final = Struct(">ihqqqBBB")  # no record errors, no message, no tags


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
    stops = _ONE if len(results) == 1 else (yield from _topic_ends(results))
    put_count(out, len(stops), flexible)
    first = 0
    for stop in stops:
        topic = results[first][0]
        put_topic(out, topic, flexible)
        put_count(out, stop - first, flexible)
        for at in range(first, stop):
            result = results[at]
            if not flexible:
                out += _plain_result(result, version)
            else:
                out += _flexible_result(result)
                if tags is not None and result[2]:
                    out[-1:] = tags[0].get((topic, result[1]), b"\0")
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


def _plain_result(result: ProduceResult, version: int) -> bytes:
    _, index, code, base, time_ms, start, message, record_errors = result
    if version < 5:
        return _RESULT_V3.pack(index, code, base, time_ms)
    if version < 8:
        return _RESULT_V5.pack(index, code, base, time_ms, start)
    if message is None and not record_errors:
        return _RESULT_V8.pack(index, code, base, time_ms, start, 0, -1)
    out = bytearray(_RESULT_V5.pack(index, code, base, time_ms, start))
    out += _INT.pack(len(record_errors))
    for record, text in record_errors:
        raw = text.encode()
        out += _INT.pack(record) + _SHORT.pack(len(raw)) + raw
    raw = (message or "").encode()
    out += _SHORT.pack(len(raw) if message is not None else -1) + raw
    return bytes(out)


def _flexible_result(result: ProduceResult) -> bytes:
    _, index, code, base, time_ms, start, message, record_errors = result
    if message is None and not record_errors:
        return _RESULT_FLEXIBLE.pack(index, code, base, time_ms, start, 1, 0, 0)
    out = bytearray(_RESULT_V5.pack(index, code, base, time_ms, start))
    put_uvarint(out, len(record_errors) + 1)
    for record, text in record_errors:
        raw = text.encode()
        out += _INT.pack(record)
        put_uvarint(out, len(raw) + 1)
        out += raw + b"\0"
    raw = (message or "").encode()
    put_uvarint(out, len(raw) + 1 if message is not None else 0)
    out += raw + b"\0"
    return bytes(out)
