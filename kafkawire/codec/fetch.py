"""Flat codec of Fetch: the hot request and response without an object per topic and partition.

The declarations in `messages.fetch` describe the same format readably, and a test checks that both
are equal byte for byte in every version. A response is a list of buffers: small packed heads, and
between them views of the stored batches, never copied.

Reader and writer are steps (generators): one step is all of a request of up to MAX_ITEMS
partitions, and a longer one has as many as it needs, between which the event loop can run.

Sources: FetchRequest.json, FetchResponse.json (v4-18); KIP-227, KIP-320, KIP-392, KIP-516, KIP-595.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct, error, pack
from typing import Final

from kafkawire.codec.compile import DecodeError
from kafkawire.codec.compile_decode import MAX_STRING_BYTES, allowed_elements
from kafkawire.codec.flat import Tags, Topic, put_count, put_topic, skip_tags
from kafkawire.codec.types import Part
from kafkawire.codec.varint import put_uvarint, read_uvarint

FLEXIBLE_FROM: Final = 12  # as the declaration says, which is above this package: a test compares
TOPIC_IDS_FROM: Final = 13


MAX_ITEMS: Final = 256
"""Partitions of a request that are decoded and handled in one step, in about a millisecond."""

MAX_TAGGED: Final = 16
"""Partitions and topics with tagged fields, up to MAX_TAGS in each, that are read in one step."""


FetchItem = tuple[Topic, int, int, int, int, int]
"""(topic, index, leader epoch, offset, last fetched epoch, max bytes): what is asked of one
partition; epochs are -1 where the client does not say."""


@dataclass(slots=True)
class FetchAsk:
    """One Fetch request. `isolation` 1 is read_committed; `session_epoch` -1 is sessionless;
    `rack` is the client's, empty if it has none."""

    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0
    isolation: int = 0
    session_id: int = 0
    session_epoch: int = -1
    items: list[FetchItem] = field(default_factory=list)
    forgotten: list[tuple[Topic, int]] = field(default_factory=list)
    """Partitions that leave the session."""
    rack: str = ""
    left: int = 0
    """How many array elements may still come while it is decoded."""


@dataclass(slots=True)
class FetchResult:
    """Response for one partition: `records` are `size_bytes` of whole batches, uncopied."""

    topic: Topic
    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: list[Part] = field(default_factory=list)
    size_bytes: int = 0
    diverging: tuple[int, int] | None = None
    """(epoch, end offset) where the client's log left ours (KIP-595)."""
    aborted: Sequence[tuple[int, int]] = ()
    """(producer ID, first offset) of the aborted transactions that touch the records."""
    preferred: int = -1
    """The broker to which the client is to send instead, from v11 on (KIP-392); there are no
    records then."""


_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_HEAD_V4 = Struct(">iiiib")  # replica, max wait, min bytes, max bytes, isolation
_HEAD_V7 = Struct(">iiiibii")  # ... session id, session epoch
_HEAD_V15 = Struct(">iiibii")  # the replica went into a tag
_ITEM_V4 = Struct(">iqi")
_ITEM_V5 = Struct(">iqqi")
_ITEM_V9 = Struct(">iiqqi")
_ITEM_V12 = Struct(">iiqiqi")


def read_request(
    ask: FetchAsk, buf: memoryview, pos: int, end: int, version: int
) -> Generator[None, None, None]:
    """Decode the request body in buf[pos:end] into `ask`, which is empty. DecodeError for any
    length that does not fit."""
    ask.left = allowed_elements(end - pos)
    try:
        pos = _read_head(ask, buf, pos, version)
        if version >= FLEXIBLE_FROM:
            pos = yield from _read_flexible(ask, buf, pos, end, version)
        else:
            pos = yield from _read_plain(ask, buf, pos, end, version)
    except (error, IndexError, UnicodeDecodeError) as wrong:
        raise DecodeError(f"Fetch request: {wrong}") from None
    if pos > end:
        raise DecodeError("Fetch request ends before its fields do")


def _read_head(ask: FetchAsk, buf: memoryview, pos: int, version: int) -> int:
    if version >= 15:
        (
            ask.max_wait_ms, ask.min_bytes, ask.max_bytes, ask.isolation, ask.session_id,
            ask.session_epoch,
        ) = _HEAD_V15.unpack_from(buf, pos)  # fmt: skip
        return pos + 21
    if version >= 7:
        (
            _, ask.max_wait_ms, ask.min_bytes, ask.max_bytes, ask.isolation, ask.session_id,
            ask.session_epoch,
        ) = _HEAD_V7.unpack_from(buf, pos)  # fmt: skip
        return pos + 25
    _, ask.max_wait_ms, ask.min_bytes, ask.max_bytes, ask.isolation = _HEAD_V4.unpack_from(buf, pos)
    return pos + 17


def _read_plain(
    ask: FetchAsk, buf: memoryview, pos: int, end: int, version: int
) -> Generator[None, None, int]:
    items = ask.items
    topics, pos = _read_count(ask, buf, pos, end, 6, flexible=False)
    for number in range(topics):
        if number and number % MAX_ITEMS == 0:
            yield
        topic, pos = _plain_name(buf, pos, end)
        partitions, pos = _read_count(ask, buf, pos, end, 16, flexible=False)
        for _ in range(partitions):
            if items and len(items) % MAX_ITEMS == 0:
                yield
            epoch = -1
            if version >= 9:
                index, epoch, offset, _, most = _ITEM_V9.unpack_from(buf, pos)
                pos += 28
            elif version >= 5:
                index, offset, _, most = _ITEM_V5.unpack_from(buf, pos)
                pos += 24
            else:
                index, offset, most = _ITEM_V4.unpack_from(buf, pos)
                pos += 16
            items.append((topic, index, epoch, offset, -1, most))
    if version >= 7:
        topics, pos = _read_count(ask, buf, pos, end, 6, flexible=False)
        if topics:
            pos = yield from _read_forgotten(ask, topics, buf, pos, end, version)
    if version >= 11:
        ask.rack, pos = _plain_name(buf, pos, end)
    return pos


def _read_flexible(
    ask: FetchAsk, buf: memoryview, pos: int, end: int, version: int
) -> Generator[None, None, int]:
    items, tagged = ask.items, 0
    topics, pos = _read_count(ask, buf, pos, end, 3, flexible=True)
    for number in range(topics):
        if tagged >= MAX_TAGGED or (number and number % MAX_ITEMS == 0):
            tagged = 0
            yield
        topic, pos = _flexible_topic(buf, pos, end, version)
        partitions, pos = _read_count(ask, buf, pos, end, 33, flexible=True)
        for _ in range(partitions):
            if tagged >= MAX_TAGGED or (items and len(items) % MAX_ITEMS == 0):
                tagged = 0
                yield
            index, epoch, offset, last, _, most = _ITEM_V12.unpack_from(buf, pos)
            pos += 32
            if buf[pos] == 0:
                pos += 1
            else:
                pos = skip_tags(buf, pos, end)
                tagged += 1
            items.append((topic, index, epoch, offset, last, most))
        if buf[pos] == 0:
            pos += 1
        else:
            pos = skip_tags(buf, pos, end)
            tagged += 1
    topics, pos = _read_count(ask, buf, pos, end, 3, flexible=True)
    if topics:
        pos = yield from _read_forgotten(ask, topics, buf, pos, end, version)
    length, pos = read_uvarint(buf, pos)
    if length > 1:
        stop = pos + length - 1
        if stop > end or length > MAX_STRING_BYTES:
            raise DecodeError("Fetch request: the rack does not fit")
        ask.rack = str(buf[pos:stop], "utf-8")
        pos = stop
    return pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)


def _read_forgotten(
    ask: FetchAsk, topics: int, buf: memoryview, pos: int, end: int, version: int
) -> Generator[None, None, int]:
    """Read the partitions that leave a session."""
    flexible = version >= FLEXIBLE_FROM
    topic: Topic
    for number in range(topics):
        if number and number % MAX_TAGGED == 0:
            yield
        if flexible:
            topic, pos = _flexible_topic(buf, pos, end, version)
        else:
            topic, pos = _plain_name(buf, pos, end)
        partitions, pos = _read_count(ask, buf, pos, end, 4, flexible=flexible)
        for _ in range(partitions):
            (index,) = _INT.unpack_from(buf, pos)
            pos += 4
            ask.forgotten.append((topic, index))
            if len(ask.forgotten) % MAX_ITEMS == 0:
                yield
        if flexible:
            pos = skip_tags(buf, pos, end)
    return pos


def _read_count(
    ask: FetchAsk, buf: memoryview, pos: int, end: int, smallest: int, *, flexible: bool
) -> tuple[int, int]:
    """Return the number of elements of an array and the position of the first; `smallest` is the
    size of an element."""
    if flexible:
        count, pos = read_uvarint(buf, pos)
        count -= 1
    else:
        (count,) = _INT.unpack_from(buf, pos)
        pos += 4
    room = end - pos
    if count < 0 or count * smallest > room:
        raise DecodeError(f"Fetch request: an array of {count} elements in {room} bytes")
    ask.left -= count
    if ask.left < 0:
        raise DecodeError("Fetch request: too many elements for its size")
    return count, pos


def _plain_name(buf: memoryview, pos: int, end: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(buf, pos)
    stop = pos + 2 + length
    if length < 0 or stop > end:
        raise DecodeError(f"Fetch request: a string of {length} bytes does not fit")
    return str(buf[pos + 2 : stop], "utf-8"), stop


def _flexible_topic(buf: memoryview, pos: int, end: int, version: int) -> tuple[Topic, int]:
    if version >= TOPIC_IDS_FROM:
        stop = pos + 16
    else:
        length, pos = read_uvarint(buf, pos)
        stop = pos + length - 1
    if stop > end or stop < pos or stop - pos > MAX_STRING_BYTES:
        raise DecodeError("Fetch request: a topic does not fit")
    raw = bytes(buf[pos:stop])
    return (raw if version >= TOPIC_IDS_FROM else raw.decode()), stop


# index, error, high watermark, last stable [, log start v5], aborted [, preferred v11], length
_RESULT_V4 = Struct(">ihqqii")
_RESULT_V5 = Struct(">ihqqqii")
_RESULT_V11 = Struct(">ihqqqiii")
_RESULT_V12 = Struct(">ihqqqBi")  # aborted, preferred; the length follows as a varint
_ENDS: Final = Struct(">ihqq")  # index, error, high watermark, last stable
_LONG: Final = Struct(">q")
_ABORTED_BYTES: Final = 16  # producer id, first offset
_EPOCH_END: Final = Struct(">iqB")


def write_response(
    parts: list[Part],
    results: list[FetchResult],
    version: int,
    *,
    read_committed: bool,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    tags: Tags | None = None,
) -> Generator[None, None, None]:
    """Encode the response body and append it to `parts`, as buffers and spans of files, records
    uncopied. Results of one topic are adjacent.

    Aborted transactions are null for read_uncommitted, as in Kafka's responses. `tags` of
    partitions are for those with an error.
    """
    head = bytearray(_INT.pack(throttle_ms))
    if version >= 7:
        head += _SHORT.pack(error_code) + _INT.pack(session_id)
    flexible = version >= FLEXIBLE_FROM
    put = _put_flexible if flexible else _put_plain
    stops = _ONE if len(results) == 1 else (yield from _topic_ends(results))
    put_count(head, len(stops), flexible)
    first = 0
    for stop in stops:
        put_topic(head, results[first].topic, flexible)
        put_count(head, stop - first, flexible)
        for at in range(first, stop):
            result = results[at]
            put(head, result, version, read_committed)
            if result.records:
                parts.append(head)
                parts += result.records
                head = bytearray()
            if flexible:
                _put_tags(head, result, tags)
            if (at + 1) % MAX_ITEMS == 0:
                parts.append(head)
                head = bytearray()
                yield
        if flexible:
            head.append(0)
        first = stop
    if flexible:
        head += b"\0" if tags is None else tags[1]
    if head:
        parts.append(head)


_ONE: Final = array("q", (1,))


def _topic_ends(results: list[FetchResult]) -> Generator[None, None, array[int]]:
    """Return where the results of each topic end. An array, because freeing a list of as many
    numbers as a request can have topics would hold the event loop."""
    stops = array("q")
    for at in range(1, len(results) + 1):
        if at == len(results) or results[at].topic != results[at - 1].topic:
            stops.append(at)
        if at % MAX_ITEMS == 0:
            yield
    return stops


def _put_plain(head: bytearray, r: FetchResult, version: int, read_committed: bool) -> None:
    size, aborted = r.size_bytes, 0 if read_committed else -1
    if r.aborted and read_committed:
        _put_with_aborted(head, r, version, flexible=False)
    elif version >= 11:
        head += _RESULT_V11.pack(
            r.index, r.error_code, r.high_watermark, r.last_stable_offset, r.log_start_offset,
            aborted, r.preferred, size,
        )  # fmt: skip
    elif version >= 5:
        head += _RESULT_V5.pack(
            r.index, r.error_code, r.high_watermark, r.last_stable_offset, r.log_start_offset,
            aborted, size,
        )  # fmt: skip
    else:
        head += _RESULT_V4.pack(
            r.index, r.error_code, r.high_watermark, r.last_stable_offset, aborted, size
        )


def _put_flexible(head: bytearray, r: FetchResult, version: int, read_committed: bool) -> None:
    if r.aborted and read_committed:
        _put_with_aborted(head, r, version, flexible=True)
        return
    head += _RESULT_V12.pack(
        r.index, r.error_code, r.high_watermark, r.last_stable_offset, r.log_start_offset,
        1 if read_committed else 0, r.preferred,
    )  # fmt: skip
    put_uvarint(head, r.size_bytes + 1)


def _encode_aborted(aborted: Sequence[tuple[int, int]], *, flexible: bool) -> bytes | bytearray:
    """Encode aborted transactions; a page can have tens of thousands, so not one by one."""
    plain = pack(f">{2 * len(aborted)}q", *chain.from_iterable(aborted))
    if not flexible:
        return plain
    out = bytearray(len(aborted) * (_ABORTED_BYTES + 1))  # a zero after each: no tags
    for byte in range(_ABORTED_BYTES):
        out[byte :: _ABORTED_BYTES + 1] = plain[byte::_ABORTED_BYTES]
    return out


def _put_with_aborted(head: bytearray, r: FetchResult, version: int, *, flexible: bool) -> None:
    """As `_put_plain` and `_put_flexible`, with aborted transactions, which are rare."""
    head += _ENDS.pack(r.index, r.error_code, r.high_watermark, r.last_stable_offset)
    if version >= 5:
        head += _LONG.pack(r.log_start_offset)
    put_count(head, len(r.aborted), flexible)
    head += _encode_aborted(r.aborted, flexible=flexible)
    if version >= 11:
        head += _INT.pack(r.preferred)
    if flexible:
        put_uvarint(head, r.size_bytes + 1)
    else:
        head += _INT.pack(r.size_bytes)


def _put_tags(head: bytearray, r: FetchResult, tags: Tags | None) -> None:
    if r.diverging is None:
        if tags is None or not r.error_code:
            head.append(0)
        else:
            head += tags[0].get((r.topic, r.index), b"\0")
        return
    epoch, end_offset = r.diverging
    head += b"\x01\x00\x0d" + _EPOCH_END.pack(epoch, end_offset, 0)
