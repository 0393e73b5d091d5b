"""Bytes and numbers at addresses, for compiled loops.

An address is a plain number, so passing it is free; for arrays numba counts references, with atomic
operations, in each function call. The owner of an address keeps its memory alive and checks its
bounds. After a change of this file, delete numba's cache of the modules that use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_INT32_BYTES, _INT64_BYTES = 4, 8


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for this signature, without the GIL, or load it from numba's cache. If
    numba finds no folder for its cache, it is compiled each time."""

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:
            return njit(signature, nogil=True)(function)

    return compile_it


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
