"""Filter packs: the filters of the keys of many segment objects, by stripes of the hashes. Pure.

A find of one key in a thousand segments would take a thousand requests, one for the filter of each.
A bucket of a filter is chosen by the upper bits of the hash (kafkawire.codec.segment.keys). So a
pack has, for each *stripe* of the hashes, the buckets that they choose in the filter of each
partition in each of its objects. One ranged read of a stripe answers for all of them. A pack states
facts about objects that never change. It is derived: without it readers use the filters of the
objects.

All stripes have the same length; each says of which pack and objects it is, and has a checksum, so
nothing else need be read or believed.

    stripe      0 magic "KWFILTER"       8 version u32 (1)       12 checksum u32 (of 0-11, 16 to
               16 length u32                                        length)
               20 stripe u32            24 stripes u32           28 hash u32 (1)
               32 objects u32           36 entries u32           40 number of the pack u64
               48 uuids, 16 bytes each, then entries, then their buckets, then zeros
      entry     0 partition number u64   8 object u32            12 buckets of the filter u32

Of `n` buckets, stripe `s` of `t` has those from s * n / t to (s + 1) * n / t - 1 / 2**32, rounded
down: two adjacent stripes may have the same bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.key_hash import bucket_of, whole_bits
from kafkawire.codec.segment.keys import BUCKET_BYTES, HASH, PartitionKeys, whole_buckets
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

MAGIC = b"KWFILTER"
VERSION = 1
UUID_BYTES = 16
STRIPE_BYTES = 96 << 10
"""A pack has the fewest stripes that are not larger than this: a request for so much takes hardly
longer than one for the first byte."""
MAX_STRIPES = 1024
MAX_STRIPE_BYTES = 1 << 20
"""A reader reads 32 stripes at a time: 32 MiB."""
MAX_ENTRIES = 4096
"""Each takes at least 48 bytes of every stripe, so 192 KiB."""

_HEAD = Struct("<8sIIIIIIIIQ")
_ENTRY = Struct("<QII")
_VERSION_AT, _SUM_AT, _CHECKED_FROM = 8, 12, 16
_WHOLE = 1 << 32


class WholeFilter(NamedTuple):
    """The filter of all keys of a partition in one object: its buckets; none if it has no keys."""

    number: int
    buckets: Buffer


class PackedObject(NamedTuple):
    """An object and the filters of those of its partitions that were indexed completely."""

    uuid: bytes
    filters: Sequence[WholeFilter]


class PackShape(NamedTuple):
    """The number of stripes of a pack, and the length of each."""

    stripes: int
    stripe_bytes: int

    def place(self, hashed: int) -> int:
        """Return the number of the stripe of a hash."""
        return bucket_of(hashed, self.stripes)


def whole_filters(body: Buffer, partitions: Mapping[int, PartitionKeys]) -> list[WholeFilter]:
    """Return the filters of whole partitions in the body of a key index. FormatError if a chunk is
    damaged."""
    return [WholeFilter(each.number, whole_buckets(body, each)) for each in partitions.values()]


def shape_of_pack(objects: Sequence[PackedObject]) -> PackShape:
    sizes = [len(each.buckets) // BUCKET_BYTES for one in objects for each in one.filters]
    front = _HEAD.size + UUID_BYTES * len(objects) + _ENTRY.size * len(sizes)
    # Many small filters: more stripes would repeat the entries and save little.
    wanted = max(STRIPE_BYTES, 2 * (front + BUCKET_BYTES * len(sizes)))
    stripes = 1
    while True:
        longest = front + BUCKET_BYTES * _widest(sizes, stripes)
        if longest <= wanted or stripes == MAX_STRIPES:
            return PackShape(stripes, longest)
        stripes *= 2


def _widest(sizes: Sequence[int], stripes: int) -> int:
    """Return the most buckets that one stripe has."""
    return max(
        sum(stop - first for first, stop in (_span(size, stripe, stripes) for size in sizes))
        for stripe in range(stripes)
    )


def _span(buckets: int, stripe: int, stripes: int) -> tuple[int, int]:
    """Return (first, end) of the buckets that the hashes of a stripe choose."""
    if not buckets:
        return 0, 0
    # Rounded up: the least and the greatest hash of the stripe, in units of their upper halves.
    lowest = -(-stripe * _WHOLE // stripes)
    highest = -(-(stripe + 1) * _WHOLE // stripes) - 1
    return lowest * buckets >> 32, (highest * buckets >> 32) + 1


def write_stripes(
    number: int, objects: Sequence[PackedObject], shape: PackShape
) -> Iterator[bytes]:
    """Yield the stripes of a pack, of the shape `shape_of_pack`."""
    entries = [(at, each) for at, one in enumerate(objects) for each in one.filters]
    sizes = [len(each.buckets) // BUCKET_BYTES for _, each in entries]
    front = b"".join(
        [
            *(one.uuid for one in objects),
            *(
                _ENTRY.pack(each.number, at, size)
                for (at, each), size in zip(entries, sizes, strict=True)
            ),
        ]
    )
    views = [memoryview(each.buckets) for _, each in entries]
    for stripe in range(shape.stripes):
        parts = [front]
        for view, size in zip(views, sizes, strict=True):
            first, stop = _span(size, stripe, shape.stripes)
            parts.append(bytes(view[BUCKET_BYTES * first : BUCKET_BYTES * stop]))
        rest = b"".join(parts)
        fields = (
            _HEAD.size + len(rest), stripe, shape.stripes, HASH, len(objects), len(entries), number
        )  # fmt: skip
        head = _HEAD.pack(MAGIC, VERSION, 0, *fields)
        head = _HEAD.pack(MAGIC, VERSION, _checksum(head, rest), *fields)
        # Zeros up to the common length, which the checksum does not cover.
        yield (head + rest).ljust(shape.stripe_bytes, b"\0")


def _checksum(head: Buffer, rest: Buffer) -> int:
    view = memoryview(head)
    # Without its own field, at a position that is the same in every version.
    return crc32c(rest, crc32c(view[_CHECKED_FROM:], crc32c(view[:_SUM_AT])))


class PackStripe:
    """One stripe of a pack. `objects`: the uuids of the objects in it."""

    def __init__(self, shape: PackShape, stripe: int, view: memoryview) -> None:
        self._shape = shape
        self._stripe = stripe
        self._view = view
        self._entries: dict[tuple[bytes, int], tuple[int, int, int]] = {}
        self.objects: list[bytes] = []
        self._read()

    def may_have(self, uuid: bytes, number: int, hashed: int) -> bool | None:
        """Return whether an object may have a key in a partition; None if the pack does not know
        that. The hash is of this stripe."""
        found = self._entries.get((uuid, number))
        # Not known: the caller reads the object's own filter.
        if found is None or self._shape.place(hashed) != self._stripe:
            return None
        at, first, buckets = found
        if not buckets:
            return False
        at += BUCKET_BYTES * (bucket_of(hashed, buckets) - first)
        stored = int.from_bytes(self._view[at : at + BUCKET_BYTES], "little")
        return not whole_bits(hashed) & ~stored

    def _read(self) -> None:
        objects, entries = _HEAD.unpack_from(self._view)[7:9]
        at = _HEAD.size + UUID_BYTES * objects
        table = at + _ENTRY.size * entries
        if table > len(self._view):
            raise FormatError(f"it has no room for {objects} objects and {entries} entries")
        rest = self._view[_HEAD.size : at]
        self.objects = [
            bytes(rest[each : each + UUID_BYTES]) for each in range(0, len(rest), UUID_BYTES)
        ]
        buckets_at = table
        for number, which, buckets in _ENTRY.iter_unpack(self._view[at:table]):
            # A number beyond the objects, or an object's partition twice, whose first filter would
            # be lost.
            if which >= objects or (self.objects[which], number) in self._entries:
                raise FormatError(f"it has a wrong entry for partition {number}")
            first, stop = _span(buckets, self._stripe, self._shape.stripes)
            self._entries[self.objects[which], number] = buckets_at, first, buckets
            buckets_at += BUCKET_BYTES * (stop - first)
        # Checked here, once: may_have reads at these positions without a check.
        if buckets_at != len(self._view):
            raise FormatError("it does not have the length of its entries")


def read_stripe(data: Buffer, number: int, shape: PackShape, stripe: int) -> PackStripe:
    """Decode a stripe of the pack of this number. FormatError for anything `write_stripes` did not
    write, or of another pack; NewerFormatError for a version that is not known here."""
    view = memoryview(data)
    if len(view) != shape.stripe_bytes or len(view) < _HEAD.size:
        raise FormatError(f"stripe {stripe} is cut short")
    head = _HEAD.unpack_from(view)
    magic, version, checksum, length, which, stripes, kind, _, _, pack = head
    if magic != MAGIC:
        raise FormatError(f"stripe {stripe} does not begin as one does")
    # Before the checksum is computed over it.
    if not _HEAD.size <= length <= len(view):
        raise FormatError(f"stripe {stripe} is damaged")
    if _checksum(view[: _HEAD.size], view[_HEAD.size : length]) != checksum:
        raise FormatError(f"stripe {stripe} is damaged")
    # After the checksum: a damaged number is not mistaken for a newer version.
    if version > VERSION or kind != HASH:
        raise NewerFormatError(f"it has version {version} and hash {kind}, not known here")
    # A stripe of another pack, or another one of this pack: a ranged read that went wrong, or a
    # pack that was replaced.
    if (version, which, stripes, pack) != (VERSION, stripe, shape.stripes, number):
        raise FormatError(f"stripe {stripe} is one of another pack")
    return PackStripe(shape, stripe, view[:length])
