"""Batches that no usual client sends: those that Kafka accepts, which every reader must read, and
those that it refuses."""

from __future__ import annotations

import gzip
import zlib
from typing import NamedTuple

import cramjam
import lz4.block
import lz4.frame
import snappy

from kafkawire.codec.batches import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEAD_BYTES,
    Record,
    pack,
    resum,
    stamp,
)
from kafkawire.codec.compression import CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD, compress
from kafkawire.codec.varint import put_varint

T0 = 1_700_000_000_000
COUNT = 12
"""Records of a batch: more than those that are always walked."""


class OddBatch(NamedTuple):
    """A batch with the base offset 0, and its records."""

    data: bytes
    records: list[Record]

    @property
    def last_key(self) -> bytes:
        """The key of its last record."""
        return self.records[-1].key or b""


def plain(name: str) -> list[Record]:
    return [Record(n, T0 + n, b"%s-%d" % (name.encode(), n), b"v%d" % n) for n in range(COUNT)]


def with_payload(items: list[Record], codec: int, payload: bytes) -> OddBatch:
    """The batch of these records with another records section."""
    data = bytearray(pack(items)[:HEAD_BYTES]) + payload
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[ATTRIBUTES_AT + 1] = data[ATTRIBUTES_AT + 1] & ~CODEC_MASK | codec
    resum(data, 0, len(data))
    return OddBatch(bytes(data), items)


def records_section(items: list[Record]) -> bytes:
    return bytes(pack(items)[HEAD_BYTES:])


def with_headers(name: str, key: bytes, value: bytes | None) -> OddBatch:
    items = plain(name)
    items[3].headers = [("a", b"1"), (key.decode("utf-8", "surrogateescape"), value), ("a", b"2")]
    return OddBatch(bytes(pack(items)), items)


def with_long_varints(name: str) -> OddBatch:
    """Numbers of five bytes where one is enough, as some encoders write them."""
    items, out = plain(name), bytearray()
    for number, item in enumerate(items):
        body = bytearray(b"\x07")  # attributes, which have no meaning
        for value in (number, number):
            put_varint(body, value)
            body[-1:] = bytes([body[-1] | 0x80, 0x80, 0x80, 0x80, 0])
        for field in (item.key or b"", item.value or b""):
            put_varint(body, len(field))
            body += field
        put_varint(body, 0)
        put_varint(out, len(body))
        out += body
    return with_payload(items, 0, bytes(out))


def with_times(name: str, *times: int) -> OddBatch:
    items = plain(name)
    for item, time in zip(items, [*times, *[times[-1]] * COUNT], strict=False):
        item.timestamp = time
    return OddBatch(bytes(pack(items)), items)


def with_attributes(name: str, bits: int) -> OddBatch:
    items = plain(name)
    return OddBatch(bytes(pack(items, attributes=bits)), items)


def compressed(name: str) -> dict[str, OddBatch]:
    items = plain(name)
    raw = records_section(items)
    half = len(raw) // 2
    parts = raw[:half], raw[half:]
    xerial = [bytes(compress(SNAPPY, part)) for part in parts]
    zstd = [bytes(compress(ZSTD, part)) for part in parts]
    forms = {
        "gzip with bytes after it": (GZIP, gzip.compress(raw) + bytes(8)),
        "gzip of two members": (GZIP, gzip.compress(parts[0]) + gzip.compress(parts[1])),
        "raw snappy": (SNAPPY, snappy.compress(raw)),
        "snappy of two streams": (SNAPPY, xerial[0] + xerial[1]),
        "lz4 with bytes after it": (LZ4, bytes(compress(LZ4, raw)) + b"xyz"),
        "zstd of two frames": (ZSTD, zstd[0] + zstd[1]),
    }
    return {form: with_payload(items, *made) for form, made in forms.items()}


def empties(name: str) -> OddBatch:
    items = plain(name)
    items[0].key, items[1].value, items[2].key = b"", b"", b""
    items[2].value = items[4].value = None
    return OddBatch(bytes(pack(items)), items)


ODD: dict[str, OddBatch] = {
    "a header key that is not UTF-8": with_headers("latin", b"caf\xe9\xff", b"x"),
    "a header key of half a surrogate pair": with_headers("half", b"\xed\xa0\x80", b"x"),
    "a null header value": with_headers("null", b"b", None),
    "an empty header key": with_headers("empty", b"", b""),
    "empty keys and values": empties("empties"),
    "negative timestamps": with_times("negative", -5, -7, T0),
    "no timestamps": with_times("untimed", -1),
    "times that go back": with_times("back", T0, T0 + 9, T0 + 3),
    "long varints": with_long_varints("long"),
    "unknown attributes": with_attributes("bits", 0x4000),
    **compressed("packed"),
}


def with_newest(batch: bytes | bytearray, newest: int) -> bytes:
    """The batch with another newest timestamp in its head."""
    data = bytearray(batch)
    stamp(data, newest, log_append=False)
    return bytes(data)


def unreadable(items: list[Record]) -> dict[str, bytes]:
    """Batches that Kafka refuses because its clients could not read them: one from each of the
    mistakes that clients have made."""
    raw = records_section(items)
    half = len(raw) // 2
    frames = bytes(compress(LZ4, raw[:half])) + bytes(compress(LZ4, raw[half:]))
    gzipped, frame = gzip.compress(raw), bytes(compress(LZ4, raw))
    bad_head = frame[:6] + bytes([frame[6] ^ 1]) + frame[7:]
    forms = {
        "gzip twice": (GZIP, gzip.compress(gzipped)),
        "zlib": (GZIP, zlib.compress(raw)),
        "cut gzip": (GZIP, gzipped[:-9]),
        "garbage zstd": (ZSTD, b"\x28\xb5\x2f\xfd" + raw[:40]),
        "framed snappy": (SNAPPY, bytes(cramjam.snappy.compress(raw))),
        "lz4 with a wrong head": (LZ4, bad_head),
        "lz4 in two frames": (LZ4, frames),
        "a block of lz4": (LZ4, lz4.block.compress(raw)),
        "uncompressed as gzip": (GZIP, raw),
        "compressed as uncompressed": (0, gzipped),
        "a byte after the last record": (0, raw + b"\0"),
        "a byte too few": (0, raw[:-1]),
    }
    if len(raw) > 64 << 10:  # one block is not linked
        forms["lz4 of linked blocks"] = LZ4, lz4.frame.compress(raw, block_linked=True)
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        name = CODEC_NAMES[codec]
        forms[f"empty {name}"] = codec, bytes(compress(codec, b""))
        fewer = records_section(items[:-1])
        forms[f"a record too few in {name}"] = codec, bytes(compress(codec, fewer))
        more = records_section([*items, Record(len(items), T0, b"k", b"v")])
        forms[f"a record too many in {name}"] = codec, bytes(compress(codec, more))
    return {name: with_payload(items, *form).data for name, form in forms.items()}
