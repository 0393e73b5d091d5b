"""Bytes of pieces, in the order in which they are decoded, read ahead of it.

A large piece comes in runs of whole index blocks, small ones (thousands of little partitions in one
file) many at a time: what lies close together in a file is one request. `ahead` does the reading in
a thread.
"""

from __future__ import annotations

import queue
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from kafkawire.codec.segment import FormatError, SparseIndex
from kafkawire.codec.types import Buffer
from kafkawire.spark.model import Piece
from kafkawire.spark.places import Place

RUN_BYTES = 8 << 20
"""Of one request. Below 4 MiB the round trips show; three of these are in memory at a time: one
that is read, one that waits, one that is decoded."""
SMALL_BYTES = 1 << 20
"""A piece up to this size is read whole, together with others."""
TOGETHER_AT_MOST = 5000
"""Small pieces read at a time, which also hold RUN_BYTES at most."""
GAP_BYTES = 64 << 10
"""What is read and thrown away rather than making two requests of it."""
AHEAD = 1
"""Results that wait to be taken."""
INDEXES_KEPT = 8
"""Of large pieces, for the next task of this process: it often goes on in the same segment. One has
0.7 % of its segment's bytes at most."""

T = TypeVar("T")


class Load(NamedTuple):
    """Bytes of piece number `at`, the `length` from `position` of its file on; fewer where the file
    ends too early. `blocks`: the index, if they are whole blocks; None: it is damaged. `gone`: the
    file is not there, and nothing follows. Each piece has at least one."""

    at: int
    blocks: SparseIndex | None
    position: int
    length: int
    data: Buffer
    gone: bool = False


def loads(places: Sequence[Place], pieces: Sequence[Piece]) -> Iterator[Load]:
    """Everything that may hold the offsets of these pieces, in their order. PlaceError."""
    at = 0
    while at < len(pieces):
        stop = _together(pieces, at)
        if stop > at:
            found = _small(places, pieces, at, stop)
        else:
            stop = at + 1
            found = _large(places[pieces[at].place], pieces[at], at)
        for load in found:
            yield load
            if load.gone:
                return
        at = stop


def _together(pieces: Sequence[Piece], at: int) -> int:
    """Up to where small pieces from `at` on are read at a time; `at`: a large one is there."""
    size, stop = 0, at
    while stop < min(len(pieces), at + TOGETHER_AT_MOST):
        more = pieces[stop].length + pieces[stop].index_length
        if more > SMALL_BYTES or size + more > RUN_BYTES:
            break
        size += more
        stop += 1
    return stop


def _small(
    places: Sequence[Place], pieces: Sequence[Piece], first: int, stop: int
) -> Iterator[Load]:
    by_file: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for piece in pieces[first:stop]:
        if piece.length:
            by_file[piece.place, piece.key] += [
                (piece.start, piece.start + piece.length),
                (piece.index_start, piece.index_start + piece.index_length),
            ]
    held = {file: _Held(places[file[0]], file[1], ranges) for file, ranges in by_file.items()}
    for at in range(first, stop):
        piece = pieces[at]
        if not piece.length:
            yield Load(at, None, piece.start, 0, b"")
            continue
        file = held[piece.place, piece.key]
        if file.gone:
            yield Load(at, None, piece.start, 0, b"", gone=True)
            return
        index = _index(piece, file.part(piece.index_start, piece.index_length))
        data = file.part(piece.start, piece.length)
        yield Load(at, index, piece.start, piece.length, data)


class _Held:
    """Ranges of a file, read in few requests."""

    def __init__(self, place: Place, key: str, ranges: Sequence[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if joined and start - joined[-1][1] <= GAP_BYTES and stop - joined[-1][0] <= RUN_BYTES:
                joined[-1] = joined[-1][0], max(joined[-1][1], stop)
            else:
                joined.append((start, stop))
        self.gone = False
        self._starts = [start for start, _ in joined]
        self._parts: list[memoryview] = []
        try:
            for start, stop in joined:
                self._parts.append(memoryview(place.get_range(key, start, stop - start)))
        except FileNotFoundError:
            self.gone = True

    def part(self, start: int, length: int) -> memoryview:
        """One of the ranges; shorter where the file ended."""
        at = bisect_right(self._starts, start) - 1
        begin = start - self._starts[at]
        return self._parts[at][begin : begin + length]


def _large(place: Place, piece: Piece, at: int) -> Iterator[Load]:
    try:
        index = read_index(place, piece)
        if index is None:
            runs = _plain_runs(piece)
        else:
            first, _ = index.span(piece.base, 1)
            last, length = index.span(piece.end - 1, 1)
            runs = index.runs(first, last + length, RUN_BYTES)
        for position, length in runs:
            data = place.get_range(piece.key, position, length)
            yield Load(at, index, position, length, data)
    except FileNotFoundError:
        yield Load(at, None, piece.start, 0, b"", gone=True)


def _index(piece: Piece, body: Buffer) -> SparseIndex | None:
    try:
        return SparseIndex(body, piece.start, piece.length, piece.entry_base, piece.index_checksum)
    except FormatError:
        return None


def read_index(place: Place, piece: Piece) -> SparseIndex | None:
    """The sparse index of a piece's entry; None if it is damaged. FileNotFoundError, PlaceError."""
    return _read_index(place, piece._replace(place=0, base=0, end=0))


@lru_cache(INDEXES_KEPT)
def _read_index(place: Place, piece: Piece) -> SparseIndex | None:
    return _index(piece, place.get_range(piece.key, piece.index_start, piece.index_length))


def _plain_runs(piece: Piece) -> Iterator[tuple[int, int]]:
    stop = piece.start + piece.length
    for position in range(piece.start, stop, RUN_BYTES):
        yield position, min(RUN_BYTES, stop - position)


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same, made in a thread while those before are used. Ends with whoever takes them."""
    done = object()
    made: queue.Queue[object] = queue.Queue(AHEAD)
    left = threading.Event()

    def put(item: object) -> bool:
        while not left.is_set():
            try:
                made.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(done)
        except BaseException as failure:  # whoever takes them is to see it
            put(_Failed(failure))

    thread = threading.Thread(target=work, name="kafkawire-ahead", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not done:
            if isinstance(item, _Failed):
                raise item.failure
            yield item  # type: ignore[misc]
    finally:
        left.set()  # a request under way ends by its own time limit; nobody waits for it


class _Failed(NamedTuple):
    failure: BaseException
