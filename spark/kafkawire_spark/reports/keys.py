"""Count records and bytes by key in bounded memory: exact for `ROOM` keys, beyond that a sample of
keys, and the most frequent ones. Runs in Spark tasks; their results are merged.

The keys of the sample have no error (distinct sampling: Gibbons 2001). Others are counted as
frequent items (Misra and Gries 1982, as in Anderson et al. 2017).

The compiled loops check nothing: the caller guarantees the lengths of the arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import types

from kafkawire.codec.compiled import byte, compile_for, int32

if TYPE_CHECKING:
    import pyarrow as pa


KEPT = 128
"""Bytes of a key that are kept for display."""

_I64, _I32, _U8, _U64 = types.int64[::1], types.int32[::1], types.uint8[::1], types.uint64[::1]
_SPREAD, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # of splitmix64 (Steele et al. 2014)
_SLOT_SHIFT = 40  # slots use the high bits: the low ones select the sample


@compile_for(types.void(types.int64, types.int64, _U64))
def hash_keys(ends: int, data: int, hashes: Any) -> None:
    """Hash each key data[ends[i] : ends[i + 1]] (both addresses) to 64 bits. Two keys with the same
    hash count as one; a hundred million keys most likely have no collision."""
    for i in range(len(hashes)):
        at, stop = int32(ends, i), int32(ends, i + 1)
        state = types.uint64(stop - at) * types.uint64(_MIX)
        while at < stop:
            word = types.uint64(0)
            if stop - at >= 8:
                for k in range(8):
                    word |= types.uint64(byte(data, at + k)) << types.uint64(8 * k)
            else:
                for k in range(stop - at):
                    word |= types.uint64(byte(data, at + k)) << types.uint64(8 * k)
            at += 8
            state = (state ^ word) * types.uint64(_SPREAD)
            state ^= state >> types.uint64(29)
        state = (state ^ (state >> types.uint64(30))) * types.uint64(_MIX)
        hashes[i] = state ^ (state >> types.uint64(31))


@compile_for(
    types.int64(
        types.int64, _U64, _I64, _I64, _I32, types.int64, types.int64,
        types.int64, _I32, _U64, _I64, _I64, _I32, _U8, _I64,
    )
)  # fmt: skip
def add_keys(
    row: int, hashes: Any, records: Any, sizes: Any, lengths: Any, ends: int, data: int,
    count: int, slots: Any, of_hash: Any, of_records: Any, of_sizes: Any, of_lengths: Any,
    of_texts: Any, out: Any,
) -> int:  # fmt: skip
    """Add rows from `row` on to the table: `records` and bytes (`sizes`) of a key with this hash
    and length whose text, truncated, is data[ends[i] : ends[i + 1]] (both are addresses).

    `count`: number of entries. Returns the first row that did not fit, else the number of rows;
    out[0] is the new number of entries.
    """
    mask, room = len(slots) - 1, len(of_hash)
    while row < len(hashes):
        own = hashes[row]
        slot = types.int64(own >> types.uint64(_SLOT_SHIFT)) & mask
        entry = slots[slot]
        while entry >= 0 and of_hash[entry] != own:
            slot = (slot + 1) & mask
            entry = slots[slot]
        if entry < 0:
            if count == room:
                break
            entry = count
            count += 1
            slots[slot] = entry
            of_hash[entry], of_records[entry], of_sizes[entry] = own, 0, 0
            of_lengths[entry] = lengths[row]
            at = int32(ends, row)
            for k in range(min(int32(ends, row + 1) - at, KEPT)):
                of_texts[entry * KEPT + k] = byte(data, at + k)
        of_records[entry] += records[row]
        of_sizes[entry] += sizes[row]
        row += 1
    out[0] = count
    return row


@compile_for(types.void(_U64, _I32))
def index_keys(hashes: Any, slots: Any) -> None:
    """Rebuild the slots for the entries of these hashes."""
    mask = len(slots) - 1
    slots[:] = -1
    for entry in range(len(hashes)):
        slot = types.int64(hashes[entry] >> types.uint64(_SLOT_SHIFT)) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = entry


ROOM = 1 << 17
"""Maximum number of keys of a topic in the table: 22 MB. A sample has at least a quarter of that,
so its standard error is at most 0.6 %."""
_SLOTS_EACH = 2
_CUT = 0.75
HEAVY = 8
"""A count of more than this many errors is used directly, without the sample."""
CURVE = 2000
"""Maximum number of steps of a curve: more than a plot has pixels."""


class Top(NamedTuple):
    """A key: its first bytes, its length, and lower bounds of records and bytes, with errors of at
    most `..._off`."""

    text: bytes
    length: int
    records: int
    bytes: int
    records_off: int
    bytes_off: int


class Keys:
    """The keys of a topic, or of a task's share of it."""

    def __init__(self, room: int = ROOM) -> None:
        from kafkawire_spark.reports.keys import KEPT  # imports numba

        self.kept, self.level, self.count = KEPT, 0, 0
        self.records_off, self.bytes_off = 0, 0
        self._slots = np.full(room * _SLOTS_EACH, -1, np.int32)
        self._hashes = np.empty(room, np.uint64)
        self._records, self._bytes = np.empty(room, np.int64), np.empty(room, np.int64)
        self._lengths = np.empty(room, np.int32)
        self._texts = np.empty(room * KEPT, np.uint8)

    def add(self, keys: pa.Array, sizes: Any) -> None:
        """Add records: keys without nulls, and bytes of each record, int64."""
        import pyarrow.compute as pc

        from kafkawire_spark.reports.keys import hash_keys

        hashes = np.empty(len(keys), np.uint64)
        hash_keys(*_places(keys), hashes)
        lengths = np.array(pc.binary_length(keys))
        self._add(hashes, np.ones(len(keys), np.int64), sizes, lengths, keys)

    def merge(self, packed: bytes) -> None:
        """Add the result of `pack`."""
        import pyarrow as pa

        with pa.ipc.open_stream(packed) as stream:
            batch, said = stream.read_next_batch(), stream.schema.metadata
        self.level = max(self.level, int(said[b"level"]))
        self.records_off += int(said[b"records_off"])
        self.bytes_off += int(said[b"bytes_off"])
        hashes, records, sizes, lengths = (np.array(column) for column in batch.columns[:4])
        self._add(hashes, records, sizes, lengths, batch.column(4))

    def pack(self) -> bytes:
        import pyarrow as pa

        n = self.count
        kept = np.minimum(self._lengths[:n], self.kept)
        texts = self._texts[: n * self.kept].reshape(n, self.kept)
        ends = np.concatenate(([0], np.cumsum(kept))).astype(np.int32)
        data = texts[np.arange(self.kept) < kept[:, None]]
        key = pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(data)])
        columns = [self._hashes[:n], self._records[:n], self._bytes[:n], self._lengths[:n], key]
        metadata = {
            "level": self.level,
            "records_off": self.records_off,
            "bytes_off": self.bytes_off,
        }
        names = ["hash", "records", "bytes", "length", "text"]
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)
        batch = batch.replace_schema_metadata(
            {name: str(value) for name, value in metadata.items()}
        )
        out = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(out, batch.schema, options=options) as stream:
            stream.write_batch(batch)
        packed: bytes = out.getvalue().to_pybytes()
        return packed

    def _add(self, hashes: Any, records: Any, sizes: Any, lengths: Any, texts: pa.Array) -> None:
        from kafkawire_spark.reports.keys import add_keys

        row, out, places = 0, np.zeros(1, np.int64), _places(texts)
        while row < len(hashes):
            row = add_keys(
                row, hashes, records, sizes, lengths, *places,
                self.count, self._slots, self._hashes, self._records, self._bytes, self._lengths,
                self._texts, out,
            )  # fmt: skip
            self.count = int(out[0])
            if row < len(hashes):
                self._shrink()

    def compute_sample_mask(self) -> Any:
        """Return which entries are in the sample, whose records are all counted."""
        # Keys whose hash ends with `level` zeros: a key is in the samples of all tasks, with all of
        # its records.
        rest = np.uint64((1 << self.level) - 1)
        return (self._hashes[: self.count] & rest) == 0

    def _shrink(self) -> None:
        """Free at least a quarter of the table."""
        from kafkawire_spark.reports.keys import index_keys

        while self.compute_sample_mask().sum() > len(self._hashes) // 2:
            self.level += 1  # drops half of the sample
        n, kept = self.count, self.compute_sample_mask()
        # Of other keys the 75th percentile of the counts is subtracted from all, and keys without a
        # rest are dropped. The subtracted counts add up to the error: at most 8 / ROOM of a task's
        # records, and as much again after merging, 0.012 % of all.
        off = []
        for counts in (self._records, self._bytes):
            others = counts[:n][~kept]
            cut = int(np.partition(others, at := int(_CUT * (len(others) - 1)) + 1)[at])
            counts[:n][~kept] = np.maximum(others - cut, 0)
            off.append(cut)
        self.records_off += off[0]
        self.bytes_off += off[1]
        stays = np.flatnonzero(kept | (self._records[:n] > 0) | (self._bytes[:n] > 0))
        self.count = len(stays)
        for column in (self._hashes, self._records, self._bytes, self._lengths):
            column[: self.count] = column[stays]
        texts = self._texts.reshape(-1, self.kept)
        texts[: self.count] = texts[stays]
        index_keys(self._hashes[: self.count], self._slots)

    def top(self, many: int) -> list[Top]:
        """Return the keys with the most records, and those with the most bytes."""
        n, kept = self.count, self.compute_sample_mask()
        texts = self._texts.reshape(-1, self.kept)
        found = {}
        for counts in (self._records[:n], self._bytes[:n]):
            least = np.partition(counts, n - many)[n - many] if n > many else 0
            rows = []
            for entry in np.flatnonzero(counts >= least).tolist():
                text = texts[entry, : self._lengths[entry]].tobytes()
                rows.append((-int(counts[entry]), text, entry))
            for _, text, entry in sorted(rows)[:many]:
                off = (0, 0) if kept[entry] else (self.records_off, self.bytes_off)
                numbers = (self._lengths[entry], self._records[entry], self._bytes[entry])
                length, records, size = (int(number) for number in numbers)
                found[entry] = Top(text, length, records, size, *off)
        return list(found.values())

    def curve(self) -> tuple[Any, Any]:
        """Return records of a key, ascending, and how many keys have so many: counted, or
        estimated."""
        records, kept = self._records[: self.count], self.compute_sample_mask()
        if self.level == 0:
            counts, keys = np.unique(records[kept], return_counts=True)
            return counts, keys
        heavy = records > HEAVY * self.records_off
        light, few = np.unique(records[kept & ~heavy], return_counts=True)
        most, each = np.unique(records[heavy], return_counts=True)
        return np.concatenate((light, most)), np.concatenate((few << self.level, each))


def thin_curve(records: Any, keys: Any) -> tuple[Any, Any]:
    """Reduce a curve to at most `CURVE` steps: neighbours are replaced by their mean."""
    if len(records) <= CURVE:
        return records.astype(np.float64), keys
    firsts = np.linspace(0, len(records), CURVE, endpoint=False).astype(np.int64)
    many = np.add.reduceat(keys, firsts)
    return np.add.reduceat(records * keys, firsts) / many, many


def _places(texts: pa.Array) -> tuple[int, int]:
    """Return the addresses of the ends, from the beginning of the first on, and of the bytes."""
    _, ends, data = texts.buffers()
    return ends.address + 4 * texts.offset, data.address if data is not None else 0
