"""Record batches in loops compiled by numba: bytes at addresses, varints, heads, records.

An address is a plain number, so passing it is free; for arrays numba counts references, with atomic
operations, in each function call. The owner of an address keeps its memory alive and checks its
bounds: numba checks none. Readers of varints, fields and records check them, with the position up
to which they may read. Importing this imports numba, which takes 0.3 s and 90 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_INT32_BYTES, _INT64_BYTES = 4, 8


HEAD_BYTES, PREFIX_BYTES, RECORD_BYTES_MIN = 61, 12, 7
LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, COUNT_AT = 8, 16, 21, 23, 57
BAD = 1 << 62
"""A position at which nothing can be read: the result of readers after malformed bytes."""


def compile_for(
    signature: Any, *sources: ModuleType
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for this signature, without the GIL, or load it from numba's cache: next
    to its source, or in NUMBA_CACHE_DIR. If numba finds no folder for its cache, it is compiled
    each time. `sources`: the modules besides this one whose constants or functions it uses."""

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        made = njit(nogil=True)(function)
        try:
            made.enable_caching()
        except RuntimeError:
            pass
        else:
            # numba compares the stamp of the function's own file only.
            cached = made._cache._cache_file
            cached._source_stamp = (cached._source_stamp, _stamp(__file__), *map(_stamp, files))
        made.compile(signature)
        made.disable_compile()
        return made

    files = [each.__file__ for each in sources]
    return compile_it


def _stamp(path: str | None) -> tuple[int, int]:
    assert path is not None
    found = Path(path).stat()
    return found.st_mtime_ns, found.st_size


@intrinsic
def byte(context: Any, data: Any, at: Any) -> Any:
    """Return the byte at `at` after the address `data`."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(builder.add(*args), cgutils.voidptr_t)
        return builder.zext(builder.load(pointer), cgutils.intp_t)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def int32(context: Any, table: Any, index: Any) -> Any:
    """Return the 32-bit number at `index` of the table at the address `table`."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.add(args[0], builder.mul(args[1], cgutils.intp_t(_INT32_BYTES)))
        pointer = builder.inttoptr(at, cgutils.int32_t.as_pointer())
        return builder.sext(builder.load(pointer), cgutils.intp_t)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def put_byte(context: Any, out: Any, at: Any, number: Any) -> Any:
    """Store the lowest byte of a number at `at` after the address `out`."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(builder.add(*args[:2]), cgutils.voidptr_t)
        builder.store(builder.trunc(args[2], cgutils.int8_t), pointer)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _element(builder: Any, table: Any, index: Any) -> Any:
    """Return a pointer to a 64-bit number of a table."""
    offset = builder.mul(index, cgutils.intp_t(_INT64_BYTES))
    return builder.inttoptr(builder.add(table, offset), cgutils.intp_t.as_pointer())


@intrinsic
def get(context: Any, table: Any, index: Any) -> Any:
    """Return the number at `index` of the table at the address `table`."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_element(builder, *args))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def put(context: Any, table: Any, index: Any, number: Any) -> Any:
    """Store a number for `get`."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _element(builder, *args[:2]))
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def copy(context: Any, out: Any, to: Any, data: Any, at: Any, size: Any) -> Any:
    """Copy the bytes data[at : at + size] to out[to : to + size], both addresses."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [
            builder.inttoptr(builder.add(*pair), cgutils.voidptr_t)
            for pair in (args[:2], args[2:4])
        ]
        cgutils.raw_memcpy(builder, *pointers, args[4], 1)
        return target.get_dummy_value()

    numbers = [types.int64] * 5
    return types.void(*numbers), generate


@njit(forceinline=True)
def read_int32(data: int, at: int) -> int:
    """Read a big-endian number."""
    value = byte(data, at) << 24 | byte(data, at + 1) << 16 | byte(data, at + 2) << 8
    value |= byte(data, at + 3)
    return value - ((value & 0x80000000) << 1)


@njit(forceinline=True)
def read_int64(data: int, at: int) -> int:
    """Read a big-endian number."""
    return read_int32(data, at) << 32 | read_int32(data, at + 4) & 0xFFFFFFFF


@njit
def _read_long(data: int, at: int, stop: int, last_shift: int, last_most: int) -> tuple[int, int]:
    """Read a zig-zag number of any length whose last byte may be at `last_shift`."""
    value, shift = types.uint64(0), types.uint64(0)
    while at < stop and shift <= last_shift:
        part = types.uint64(byte(data, at))
        at += 1
        value |= (part & types.uint64(0x7F)) << shift
        if part < 0x80:
            if shift == last_shift and part > last_most:
                break
            return types.int64(value >> types.uint64(1)) ^ -types.int64(value & types.uint64(1)), at
        shift += types.uint64(7)
    return 0, BAD


@njit(forceinline=True)
def _read_number(data: int, at: int, stop: int, last_shift: int, last_most: int) -> tuple[int, int]:
    """Read a zig-zag number at `at`, before `stop`; return it and its end, or BAD.

    Most have one or two bytes, which are read here.
    """
    if at < stop:
        value = byte(data, at)
        if value < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        if at + 1 < stop:
            more = byte(data, at + 1)
            if more < 0x80:
                value = value & 0x7F | more << 7
                return (value >> 1) ^ -(value & 1), at + 2
    return _read_long(data, at, stop, last_shift, last_most)


@njit(forceinline=True)
def read_varint(data: int, at: int, stop: int) -> tuple[int, int]:
    """Read a zig-zag number of at most 32 bits before `stop`; return it and its end, or BAD."""
    return _read_number(data, at, stop, types.uint64(28), types.uint64(0x0F))


@njit(forceinline=True)
def read_varlong(data: int, at: int, stop: int) -> tuple[int, int]:
    """Read a zig-zag number of at most 64 bits before `stop`; return it and its end, or BAD."""
    return _read_number(data, at, stop, types.uint64(63), types.uint64(1))


@njit(forceinline=True)
def read_field(data: int, at: int, stop: int) -> tuple[int, int, int]:
    """Return the position of a key or value, its length (-1: null), and its end, or BAD."""
    length, at = read_varint(data, at, stop)
    if length < 0:
        return at, -1, at
    if length > stop - at:
        return 0, 0, BAD
    return at, length, at + length


@njit(forceinline=True)
def read_record(data: int, at: int, stop: int) -> tuple[int, int, int, int, int, int]:
    """Read a record up to its key. Return where it ends, BAD if not before `stop`; the deltas of
    its time and offset; the position and length (-1: null) of its key; and the end of the key, BAD
    if something in front of it does not fit."""
    length, at = read_varint(data, at, stop)
    if length < 0 or length > stop - at:
        return BAD, 0, 0, 0, 0, BAD
    end = at + length
    shift, at = read_varlong(data, at + 1, end)  # after the attributes, which are unused
    moved, at = read_varint(data, at, end)
    key_at, key_length, at = read_field(data, at, end)
    return end, shift, moved, key_at, key_length, at
