"""Hash the keys of record batches and set their bits in filters, in compiled loops.

Importing loads the compiled code from numba's cache, or compiles it, which takes some seconds once
per machine; and it imports numba, which takes 0.3 s and 90 MB. So only the worker process imports
this, for its first segment with a key index.

Addresses are plain numbers; who passes them keeps their memory alive. Reads of several bytes take
the byte order of the machine for little-endian: `SUPPORTED`.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kafkawire.codec.compiled import (
    ATTRIBUTES_AT,
    BAD,
    COUNT_AT,
    HEAD_BYTES,
    LENGTH_AT,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    byte,
    compile_for,
    read_int32,
    read_record,
)
from kafkawire.codec.segment import key_hash

SUPPORTED = sys.byteorder == "little"

PART, AT, START, INDEX_LIMIT, LIMIT, HASHES, BLOCKS, STATE_FIELDS = range(8)
"""The state of `hash_parts`: the part, the position of the next batch in it, and where in the
partition the part starts; where in the partition the next block of the sparse index and the next
key block may begin; how many hashes and key blocks there are."""
DONE, OTHER, DAMAGED = range(3)
"""Why `hash_parts` stopped: at the end; before a batch that is compressed; at one that cannot be
read."""

_CODEC_MASK, _CONTROL = 0x07, 0x20
_INDEX_BLOCK_BYTES, _KEY_BLOCK_BYTES = 4096, 128 << 10
_NEAR_BYTES = 64 << 10
"""While a buffer of up to this size is read, the next one is loaded: it stays in a core's cache."""
_P1, _P2, _P3, _P4, _P5 = (
    types.uint64(each) for each in (key_hash.P1, key_hash.P2, key_hash.P3, key_hash.P4, key_hash.P5)
)
_FACTOR = types.uint64(key_hash.BLOCK_FACTOR)
_WORDS = ir.VectorType(ir.IntType(32), 8)


def _loader(bits: int) -> Any:
    """Return an intrinsic that reads so many bits at `at` after the address `data`."""

    @intrinsic
    def load(context: Any, data: Any, at: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(builder.add(*args), ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.uint64(types.int64, types.int64), generate

    return load


_load8, _load32, _load64 = _loader(8), _loader(32), _loader(64)


@intrinsic
def _put(context: Any, table: Any, index: Any, number: Any) -> Any:
    """Store a 64-bit number at `index` of the table at the address `table`."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.add(args[0], builder.shl(args[1], cgutils.intp_t(3)))
        builder.store(args[2], builder.inttoptr(at, ir.IntType(64).as_pointer()))
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint64), generate


@intrinsic
def _prefetch(context: Any, data: Any, at: Any) -> Any:
    """Begin to load the cache line at `at` after the address `data`, which need not exist."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        pointer = builder.inttoptr(builder.add(*args), byte)
        builder.call(prefetch, [pointer, number(0), number(3), number(1)])
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _set_bits(context: Any, filters: Any, bucket: Any, half: Any) -> Any:
    """Set the bits of the lower half of `half` in a bucket of the filter at this address."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.add(args[0], builder.shl(args[1], cgutils.intp_t(5)))
        pointer = builder.inttoptr(at, _WORDS.as_pointer())
        word = builder.trunc(args[2], ir.IntType(32))
        nothing = ir.Constant(_WORDS, ir.Undefined)
        words = builder.insert_element(nothing, word, ir.IntType(32)(0))
        words = builder.shuffle_vector(words, nothing, ir.Constant(_WORDS, [0] * 8))
        salted = builder.mul(words, ir.Constant(_WORDS, list(key_hash.SALTS)))
        shift = builder.lshr(salted, ir.Constant(_WORDS, [27] * 8))
        bits = builder.shl(ir.Constant(_WORDS, [1] * 8), shift)
        builder.store(builder.or_(builder.load(pointer, align=1), bits), pointer, align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint64), generate


@njit(forceinline=True)
def _rotate(number: int, by: int) -> int:
    return (number << types.uint64(by)) | (number >> types.uint64(64 - by))


@njit(forceinline=True)
def _round(total: int, lane: int) -> int:
    return _rotate(total + lane * _P2, 31) * _P1


@njit
def _stripes(data: int, at: int, size: int) -> int:
    one, two = _P1 + _P2, _P2
    three, four = types.uint64(0), types.uint64(0) - _P1
    for start in range(at, at + (size & ~31), 32):
        one = _round(one, _load64(data, start))
        two = _round(two, _load64(data, start + 8))
        three = _round(three, _load64(data, start + 16))
        four = _round(four, _load64(data, start + 24))
    hashed = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
    for each in (one, two, three, four):
        hashed = (hashed ^ _round(types.uint64(0), each)) * _P1 + _P4
    return hashed


@njit(forceinline=True)
def _hash(data: int, at: int, size: int) -> int:
    """Return kafkawire.codec.segment.key_hash.key_hash of the bytes [at, at + size)."""
    stop = at + size
    if size >= 32:
        hashed = _stripes(data, at, size)
        at += size & ~31
    else:
        hashed = _P5
    hashed += types.uint64(size)
    while at + 8 <= stop:
        hashed = _rotate(hashed ^ _round(types.uint64(0), _load64(data, at)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= stop:
        hashed = _rotate(hashed ^ (_load32(data, at) * _P1), 23) * _P2 + _P3
        at += 4
    while at < stop:
        hashed = _rotate(hashed ^ (_load8(data, at) * _P5), 11) * _P1
        at += 1
    hashed = (hashed ^ (hashed >> types.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> types.uint64(29))) * _P3
    return hashed ^ (hashed >> types.uint64(32))


@njit(forceinline=True)
def _records(data: int, at: int, stop: int, count: int, out: int, n: int, ahead: int) -> int:
    """Store the hashes of the keys of `count` records from the `n`th on; return their number, or
    -1 for records that do not fit. `ahead`: how far after each record to load memory, 0: eight
    records of the same length."""
    for _ in range(count):
        start = at
        at, _, _, key_at, size, key_end = read_record(data, start, stop)
        # numba checks no bounds: a record that ends beyond the buffer must not be read further.
        if key_end == BAD or at - start < RECORD_BYTES_MIN:
            return -1
        # Most of the time is waiting for memory: load what comes after the next records.
        _prefetch(data, at + (ahead if ahead else max(1024, 8 * (at - start))))
        # Null keys (-1) are not in the index.
        if size >= 0:
            _put(out, n, _hash(data, key_at, size))
            n += 1
    return n


@compile_for("int64(int64, int64, int64, int64)", key_hash)
def hash_records(data: int, size: int, count: int, out: int) -> int:
    """Hash the keys of decompressed records into the table `out`. Return their number, or -1 if
    the bytes are not so many records."""
    # `out` has room for `count`, which is a number from the batch.
    if count > size // RECORD_BYTES_MIN:
        return -1
    return _records(data, 0, size, count, out, 0, 0)


@njit(forceinline=True)
def _end(data: int, at: int, size: int) -> int:
    """Return where the batch at `at` ends, BAD if it is not whole."""
    if size - at < HEAD_BYTES:
        return BAD
    stop = at + PREFIX_BYTES + read_int32(data, at + LENGTH_AT)
    return BAD if stop > size or stop < at + HEAD_BYTES else stop


@njit(forceinline=True)
def _batch(data: int, at: int, stop: int, hashes: int, n: int, ahead: int) -> int:
    """Store the hashes of the keys of a batch from the `n`th on; return their number, or -1 for
    records that do not fit, -2 for compressed ones."""
    count = read_int32(data, at + COUNT_AT)
    kind = byte(data, at + ATTRIBUTES_AT + 1)
    # Keys of control records are not in the index.
    if kind & _CONTROL or not count:
        return n
    if kind & _CODEC_MASK:
        return -2
    # The count is not believed beyond what the bytes can hold.
    if count < 0 or count > (stop - at - HEAD_BYTES) // RECORD_BYTES_MIN:
        return -1
    return _records(data, at + HEAD_BYTES, stop, count, hashes, n, ahead)


@njit(forceinline=True)
def _begin_block(state: int, blocks: int, position: int, n: int) -> None:
    """Begin a block of the sparse index at this position of the partition, and a key block if one
    may begin there."""
    # Key blocks are runs of whole blocks of the sparse index.
    if position >= types.int64(_load64(state, 8 * LIMIT)):
        block = types.int64(_load64(state, 8 * BLOCKS))
        _put(blocks, 2 * block, types.uint64(position))
        _put(blocks, 2 * block + 1, types.uint64(n))
        _put(state, BLOCKS, types.uint64(block + 1))
        _put(state, LIMIT, types.uint64(position + _KEY_BLOCK_BYTES))
    _put(state, INDEX_LIMIT, types.uint64(position + _INDEX_BLOCK_BYTES))


@njit(forceinline=True)
def _part(
    data: int, size: int, ahead: int, hashes: int, blocks: int, state: int
) -> tuple[int, int, int]:
    """Hash the keys of one buffer; return why it stopped, where, and how many hashes there are."""
    at = types.int64(_load64(state, 8 * AT))
    start = types.int64(_load64(state, 8 * START))
    n = types.int64(_load64(state, 8 * HASHES))
    while at < size:
        stop = _end(data, at, size)
        # BAD is larger than any size.
        if stop > size:
            return DAMAGED, at, n
        if start + at >= types.int64(_load64(state, 8 * INDEX_LIMIT)):
            _begin_block(state, blocks, start + at, n)
        after = _batch(data, at, stop, hashes, n, ahead)
        if after < 0:
            # The caller decompresses it and continues after it.
            return OTHER if after == -2 else DAMAGED, at, n
        n = after
        at = stop
    return DONE, at, n


@compile_for("int64(int64, int64, int64, int64, int64, int64)", key_hash)
def hash_parts(
    addresses: int, lengths: int, parts: int, hashes: int, blocks: int, state: int
) -> int:
    """Hash the keys of whole batches in `parts` buffers with these addresses and lengths. Continue
    at `state`, which is changed. `hashes` has room for a seventh of the bytes more, `blocks` for
    two numbers for each 128 KiB and each call more: the position of a key block and its first hash.
    """
    part = types.int64(_load64(state, 8 * PART))
    why = DONE
    while part < parts and why == DONE:
        data = types.int64(_load64(addresses, 8 * part))
        size = types.int64(_load64(lengths, 8 * part))
        ahead = types.int64(0)
        # A small buffer is over soon: its prefetches reach into the next one.
        if size <= _NEAR_BYTES and part + 1 < parts:
            ahead = types.int64(_load64(addresses, 8 * part + 8)) - data
        why, at, n = _part(data, size, ahead, hashes, blocks, state)
        if why == DONE:
            part += 1
            start = types.int64(_load64(state, 8 * START))
            # The next part begins where this one ends in the partition.
            _put(state, START, types.uint64(start + size))
            at = types.int64(0)
        _put(state, AT, types.uint64(at))
        _put(state, HASHES, types.uint64(n))
    _put(state, PART, types.uint64(part))
    return why


@njit(forceinline=True)
def _copy_bucket(source: int, target: int) -> None:
    for word in range(4):
        _put(target, word, _load64(source, 8 * word))


@compile_for("void(int64, int64, int64, int64, int64, int64, int64, int64)", key_hash)
def fill(
    table: int, whole: int, block: int, count: int, rows: int, blocks: int, hashes: int, keys: int
) -> None:
    """Set the bits of the hashes of `count` key blocks, whose positions and first hashes are in
    `blocks`, in a `table` of so many rows. `whole`, the filter of the whole, is zeros; `block` has
    `rows` buckets. With one block, `whole` is the table, and the rest is not used."""
    both = types.uint64(count * rows)
    across = 2 * count
    for number in range(count):
        # The filter of a block is built apart, then copied into its column: its buckets are far
        # apart in the table.
        for word in range(4 * rows if count > 1 else 0):
            _put(block, word, types.uint64(0))
        first = types.int64(_load64(blocks, 16 * number + 8))
        end = keys if number + 1 == count else types.int64(_load64(blocks, 16 * number + 24))
        for at in range(first, end):
            hashed = _load64(hashes, 8 * at)
            upper = hashed >> types.uint64(32)
            # Bucket of the whole by the upper half, bits by the lower one.
            _set_bits(whole, types.int64((upper * both) >> types.uint64(32)), hashed)
            if count > 1:
                row = types.int64((upper * types.uint64(rows)) >> types.uint64(32))
                _set_bits(block, row, (hashed * _FACTOR) >> types.uint64(32))
        # Of each row: first the buckets of the whole, then one of each block.
        for row in range(rows if count > 1 else 0):
            _copy_bucket(block + 32 * row, table + 32 * (row * across + count + number))
    for row in range(rows if count > 1 else 0):
        for column in range(count):
            _copy_bucket(whole + 32 * (row * count + column), table + 32 * (row * across + column))
