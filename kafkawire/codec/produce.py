"""Flat codec of Produce: the hot request and response without an object per topic and partition.

The declarations in `messages.produce` describe the same format readably, and a test checks that
both are equal byte for byte in every version. Here a request becomes one list of tuples whose
batches are (start, stop) positions in the receive buffer, so nothing is copied before it is written
to the log; a response is packed directly from the results.

Sources: ProduceRequest.json, ProduceResponse.json (v3-13); KIP-467 (record errors), KIP-951.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from kafkawire.codec.batches import HEAD_BYTES, MAGIC, TRANSACTIONAL
from kafkawire.codec.compile import DecodeError
from kafkawire.codec.compile_decode import MAX_STRING_BYTES
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


MAX_ITEMS = 64
"""Partitions of a request that are decoded and appended at once, in less than a millisecond."""

MAX_TAGS = 64
"""Tagged fields in one place of a request; all of Kafka's have numbers below this."""


class ManyItems(Exception):
    """The request has more than MAX_ITEMS partitions: it must be decoded in slices, by its
    declaration."""


_FIXED: Final = Struct(
    ">hhii"
)  # transactional id length, acks, timeout, topics (when the id is null)
_ACKS: Final = Struct(">hi")
_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_PARTITION: Final = Struct(">ii")  # index, records length


def read_request(
    buf: memoryview, pos: int, end: int, version: int
) -> tuple[str | None, int, list[ProduceItem]]:
    """Decode (transactional id, acks, items) of the request body in buf[pos:end].

    The timeout is skipped: a client ends its wait itself, at its request.timeout.ms. DecodeError
    for any length that exceeds the available bytes.
    """
    try:
        if version >= FLEXIBLE_FROM:
            transactional_id, acks, items, pos = _read_flexible(buf, pos, end, version)
        else:
            transactional_id, acks, items, pos = _read_plain(buf, pos, end)
    except (error, IndexError, UnicodeDecodeError) as wrong:
        raise DecodeError(f"Produce request: {wrong}") from None
    if pos > end:
        raise DecodeError("Produce request ends before its fields do")
    return transactional_id, acks, items


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


def _read_plain(
    buf: memoryview, pos: int, end: int
) -> tuple[str | None, int, list[ProduceItem], int]:
    transactional_id = None
    length, acks, _timeout_ms, topics = _FIXED.unpack_from(buf, pos)
    pos += 12
    if length >= 0:
        pos -= 10
        transactional_id, pos = _text(buf, pos, pos + length, end)
        acks, _timeout_ms = _ACKS.unpack_from(buf, pos)
        (topics,) = _INT.unpack_from(buf, pos + 6)
        pos += 10
    items: list[ProduceItem] = []
    _check_count(topics, end - pos, 6)
    if topics > MAX_ITEMS:
        raise ManyItems
    for _ in range(topics):
        (length,) = _SHORT.unpack_from(buf, pos)
        if length < 0:
            raise DecodeError("Produce request: null topic name")
        topic, pos = _text(buf, pos + 2, pos + 2 + length, end)
        (partitions,) = _INT.unpack_from(buf, pos)
        pos += 4
        _check_count(partitions, end - pos, 8)
        if len(items) + partitions > MAX_ITEMS:
            raise ManyItems
        for _ in range(partitions):
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
    return transactional_id, acks, items, pos


def _read_flexible(
    buf: memoryview, pos: int, end: int, version: int
) -> tuple[str | None, int, list[ProduceItem], int]:
    transactional_id = None
    length, pos = read_uvarint(buf, pos)
    if length:
        transactional_id, pos = _text(buf, pos, pos + length - 1, end)
    acks, _timeout_ms = _ACKS.unpack_from(buf, pos)
    topics, pos = read_uvarint(buf, pos + 6)
    items: list[ProduceItem] = []
    topic: Topic
    _check_count(topics - 1, end - pos, 3)
    if topics > MAX_ITEMS:
        raise ManyItems
    for _ in range(topics - 1):
        if version >= TOPIC_IDS_FROM:
            topic = bytes(buf[pos : pos + 16])
            pos += 16
        else:
            length, pos = read_uvarint(buf, pos)
            if not length:
                raise DecodeError("Produce request: null topic name")
            topic, pos = _text(buf, pos, pos + length - 1, end)
        partitions, pos = read_uvarint(buf, pos)
        _check_count(partitions - 1, end - pos, 6)
        if len(items) + partitions > MAX_ITEMS:
            raise ManyItems
        for _ in range(partitions - 1):
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
            pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)
        pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)
    pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)
    return transactional_id, acks, items, pos


def _text(buf: memoryview, start: int, stop: int, end: int) -> tuple[str, int]:
    if stop > end:
        raise DecodeError(f"a string of {stop - start} bytes does not fit its request")
    if stop - start > MAX_STRING_BYTES:
        raise DecodeError(f"a string of {stop - start} bytes is too long")
    return str(buf[start:stop], "utf-8"), stop


def _check_count(count: int, room: int, smallest: int) -> None:
    """Check that an array has not more elements than its remaining bytes allow; null is not
    allowed."""
    if count < 0 or count * smallest > room:
        raise DecodeError(f"Produce request: an array of {count} elements in {room} bytes")


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


# index, error, base offset, append time [, log start v5 [, record errors 0, message null v8]]
_RESULT_V3 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
_RESULT_V8 = Struct(">ihqqqih")
_RESULT_FLEXIBLE: Final = Struct(">ihqqqBBB")  # no record errors, no message, no tags


def write_response(
    results: list[ProduceResult], version: int, throttle_ms: int = 0, tags: Tags | None = None
) -> bytes:
    """Encode the response body. `results` are in the order of the request: those of one topic are
    adjacent. `tags` of partitions are for those with an error."""
    if version >= FLEXIBLE_FROM:
        return _write_flexible(results, throttle_ms, tags)
    out = bytearray()
    topics = 0
    position = partitions = 0
    last: Topic | None = None
    for result in results:
        if result[0] != last:
            if last is not None:
                _INT.pack_into(out, position, partitions)
            last, partitions, topics = result[0], 0, topics + 1
            name = str(last).encode()
            out += _SHORT.pack(len(name)) + name
            position = len(out)
            out += b"\0\0\0\0"
        partitions += 1
        out += _plain_result(result, version)
    if last is not None:
        _INT.pack_into(out, position, partitions)
    return b"".join((_INT.pack(topics), out, _INT.pack(throttle_ms)))


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


def _write_flexible(results: list[ProduceResult], throttle_ms: int, tags: Tags | None) -> bytes:
    groups: list[tuple[Topic, list[ProduceResult]]] = []
    for result in results:
        if groups and groups[-1][0] == result[0]:
            groups[-1][1].append(result)
        else:
            groups.append((result[0], [result]))
    out = bytearray()
    put_uvarint(out, len(groups) + 1)
    for topic, members in groups:
        if isinstance(topic, bytes):
            out += topic
        else:
            name = topic.encode()
            put_uvarint(out, len(name) + 1)
            out += name
        put_uvarint(out, len(members) + 1)
        for result in members:
            out += _flexible_result(result)
            if tags is not None and result[2]:
                out[-1:] = tags[0].get((topic, result[1]), b"\0")
        out.append(0)
    out += _INT.pack(throttle_ms)
    if tags is None:
        out.append(0)
    else:
        out += tags[1]
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
