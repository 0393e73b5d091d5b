"""Flat codec of Fetch: the hot request and response without an object per topic and partition.

The declarations in `messages.fetch` describe the same format readably, and a test checks that both
are equal byte for byte in every version. A response is a list of buffers: small packed heads, and
between them views of the stored batches, never copied.

Sources: FetchRequest.json, FetchResponse.json (v4-18); KIP-227, KIP-320, KIP-392, KIP-516, KIP-595.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct, error, pack
from typing import Final

from kafkawire.codec.compile import DecodeError
from kafkawire.codec.produce import ManyItems, Tags, Topic, skip_tags
from kafkawire.codec.types import Part
from kafkawire.codec.varint import put_uvarint, read_uvarint

FLEXIBLE_FROM: Final = 12  # as the declaration says, which is above this package: a test compares
TOPIC_IDS_FROM: Final = 13


MAX_ITEMS = 256
"""Partitions of a request that are decoded and handled together, in about a millisecond; for a
request with more `read_request` raises ManyItems."""


FetchItem = tuple[Topic, int, int, int, int, int]
"""(topic, index, leader epoch, offset, last fetched epoch, max bytes): what is asked of one
partition; epochs are -1 where the client does not say."""


@dataclass(slots=True)
class FetchAsk:
    """One Fetch request. `isolation` 1 is read_committed; `session_epoch` -1 is sessionless;
    `rack` is the client's, empty if it has none."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    items: list[FetchItem]
    forgotten: list[tuple[Topic, int]]
    rack: str = ""


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


def read_request(buf: memoryview, pos: int, end: int, version: int) -> FetchAsk:
    """Decode the request body in buf[pos:end]. DecodeError for any length that does not fit,
    ManyItems for a request that must be decoded in slices."""
    try:
        ask, pos = _read_head(buf, pos, version)
        if version >= FLEXIBLE_FROM:
            pos = _read_flexible(ask, buf, pos, end, version)
        else:
            pos = _read_plain(ask, buf, pos, end, version)
    except (error, IndexError, UnicodeDecodeError) as wrong:
        raise DecodeError(f"Fetch request: {wrong}") from None
    if pos > end:
        raise DecodeError("Fetch request ends before its fields do")
    return ask


def _read_head(buf: memoryview, pos: int, version: int) -> tuple[FetchAsk, int]:
    session_id, session_epoch = 0, -1
    if version >= 15:
        wait, least, most, level, session_id, session_epoch = _HEAD_V15.unpack_from(buf, pos)
        pos += 21
    elif version >= 7:
        _, wait, least, most, level, session_id, session_epoch = _HEAD_V7.unpack_from(buf, pos)
        pos += 25
    else:
        _, wait, least, most, level = _HEAD_V4.unpack_from(buf, pos)
        pos += 17
    return FetchAsk(wait, least, most, level, session_id, session_epoch, [], []), pos


def _read_plain(ask: FetchAsk, buf: memoryview, pos: int, end: int, version: int) -> int:
    items = ask.items
    (topics,) = _INT.unpack_from(buf, pos)
    pos += 4
    _check_count(topics, end - pos, 6)
    _check_many(topics)
    for _ in range(topics):
        topic, pos = _plain_name(buf, pos, end)
        (partitions,) = _INT.unpack_from(buf, pos)
        pos += 4
        _check_count(partitions, end - pos, 16)
        _check_many(len(items) + partitions)
        for _ in range(partitions):
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
        (topics,) = _INT.unpack_from(buf, pos)
        pos += 4
        _check_count(topics, end - pos, 6)
        _check_many(topics)
        for _ in range(topics):
            topic, pos = _plain_name(buf, pos, end)
            (partitions,) = _INT.unpack_from(buf, pos)
            pos = _forget(ask, topic, buf, pos + 4, end, partitions)
    if version >= 11:
        ask.rack, pos = _plain_name(buf, pos, end)
    return pos


def _read_flexible(ask: FetchAsk, buf: memoryview, pos: int, end: int, version: int) -> int:
    items = ask.items
    topics, pos = read_uvarint(buf, pos)
    _check_count(topics - 1, end - pos, 3)
    _check_many(topics)
    for _ in range(topics - 1):
        topic, pos = _flexible_topic(buf, pos, end, version)
        partitions, pos = read_uvarint(buf, pos)
        _check_count(partitions - 1, end - pos, 33)
        _check_many(len(items) + partitions)
        for _ in range(partitions - 1):
            index, epoch, offset, last, _, most = _ITEM_V12.unpack_from(buf, pos)
            pos += 32
            pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)
            items.append((topic, index, epoch, offset, last, most))
        pos = pos + 1 if buf[pos] == 0 else skip_tags(buf, pos, end)
    topics, pos = read_uvarint(buf, pos)
    _check_count(topics - 1, end - pos, 3)
    _check_many(topics)
    for _ in range(topics - 1):
        topic, pos = _flexible_topic(buf, pos, end, version)
        partitions, pos = read_uvarint(buf, pos)
        pos = _forget(ask, topic, buf, pos, end, partitions - 1)
        pos = skip_tags(buf, pos, end)
    length, pos = read_uvarint(buf, pos)
    if length > 1:
        stop = pos + length - 1
        if stop > end:
            raise DecodeError("Fetch request: the rack does not fit")
        ask.rack = str(buf[pos:stop], "utf-8")
        pos = stop
    return skip_tags(buf, pos, end)


def _forget(
    ask: FetchAsk, topic: Topic, buf: memoryview, pos: int, end: int, partitions: int
) -> int:
    _check_count(partitions, end - pos, 4)
    _check_many(len(ask.forgotten) + partitions)
    for _ in range(partitions):
        ask.forgotten.append((topic, _INT.unpack_from(buf, pos)[0]))
        pos += 4
    return pos


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
    if stop > end or stop < pos:
        raise DecodeError("Fetch request: a topic does not fit")
    raw = bytes(buf[pos:stop])
    return (raw if version >= TOPIC_IDS_FROM else raw.decode()), stop


def _check_count(count: int, room: int, smallest: int) -> None:
    if count < 0 or count * smallest > room:
        raise DecodeError(f"Fetch request: an array of {count} elements in {room} bytes")


def _check_many(count: int) -> None:
    if count > MAX_ITEMS:
        raise ManyItems


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
    results: list[FetchResult],
    version: int,
    *,
    read_committed: bool,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    tags: Tags | None = None,
) -> list[Part]:
    """Encode the response body as buffers and spans of files, records uncopied. Results of one
    topic are adjacent.

    Aborted transactions are null for read_uncommitted, as in Kafka's responses. `tags` of
    partitions are for those with an error.
    """
    parts: list[Part] = []
    head = bytearray(_INT.pack(throttle_ms))
    if version >= 7:
        head += _SHORT.pack(error_code) + _INT.pack(session_id)
    flexible = version >= FLEXIBLE_FROM
    runs = _by_topic(results)
    _put_count(head, len(runs), flexible)
    for first, stop in runs:
        _put_topic(head, results[first].topic, flexible)
        _put_count(head, stop - first, flexible)
        for result in results[first:stop]:
            if flexible:
                _put_flexible(head, result, version, read_committed)
            else:
                _put_plain(head, result, version, 0 if read_committed else -1)
            if result.records:
                parts.append(head)
                parts += result.records
                head = bytearray()
            if flexible:
                _put_tags(head, result, tags)
        if flexible:
            head.append(0)
    if flexible:
        head += b"\0" if tags is None else tags[1]
    if head:
        parts.append(head)
    return parts


def _by_topic(results: list[FetchResult]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(results) + 1):
        if at == len(results) or results[at].topic != results[start].topic:
            runs.append((start, at))
            start = at
    return runs


def _put_count(head: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_uvarint(head, count + 1)
    else:
        head += _INT.pack(count)


def _put_topic(head: bytearray, topic: Topic, flexible: bool) -> None:
    if isinstance(topic, bytes):
        head += topic
        return
    name = topic.encode()
    if flexible:
        put_uvarint(head, len(name) + 1)
    else:
        head += _SHORT.pack(len(name))
    head += name


def _put_plain(head: bytearray, r: FetchResult, version: int, aborted: int) -> None:
    size = r.size_bytes
    if r.aborted and aborted >= 0:
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


def _aborted(aborted: Sequence[tuple[int, int]], *, flexible: bool) -> bytes | bytearray:
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
    _put_count(head, len(r.aborted), flexible)
    head += _aborted(r.aborted, flexible=flexible)
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
