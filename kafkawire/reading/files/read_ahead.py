"""Read the bytes of pieces ahead, in the order in which they are decoded.

A large piece is read in runs of whole index blocks; small ones (thousands of small partitions in
one file) are read together, with one request for adjacent ranges. For whole pieces the index is
requested together with the bytes; otherwise before them, some pieces ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import lru_cache, partial
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import SparseIndex
from kafkawire.codec.types import Buffer
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.parallel_reads import Plan, ReadRange, ReadsInFlight, Step
from kafkawire.reading.model.source import Piece

RUN_BYTES = 8 << 20
"""Bytes per request, and decoded at a time. Below 4 MiB the overhead of requests is noticeable."""
SMALL_BYTES = 1 << 20
"""A piece up to this size is read whole, together with others; one that is needed completely always
is, up to the size of a run."""
MAX_CONCURRENT = 5000
"""Maximum number of small pieces read at a time, which also have at most RUN_BYTES."""
GAP_BYTES = 64 << 10
"""Gap between two ranges that is read and discarded instead of sending two requests."""
INDEXES_AHEAD = 4
"""Number of large pieces whose index is read ahead. An index has 0.7 % of its piece's bytes,
usually more than RUN_BYTES, so these are more pieces than are read concurrently."""
INDEXES_KEPT = 8
"""Indexes of large pieces cached for the next task of this process, which often continues in the
same segment. One has at most 0.7 % of its segment's bytes."""


class Load(NamedTuple):
    """Bytes of piece number `at`: `length` bytes from `position` of its file; fewer if the file is
    too short. `blocks`: the index, if they are whole blocks; None: it is damaged. `gone`: the file
    is missing, and nothing follows. Each piece has at least one."""

    at: int
    blocks: SparseIndex | None
    position: int
    length: int
    data: Buffer
    gone: bool = False


def loads(
    places: Sequence[Place], pieces: Sequence[Piece], at_once: int = 0
) -> Generator[Load, None, None]:
    """Yield everything that may have the offsets of these pieces, in order. Raises PlaceError.

    `at_once`: concurrent requests, with RUN_BYTES of memory each; 0: the default for these places.
    Closing it ends its threads.
    """
    at_once = at_once or max((place.at_once for place in places), default=1)
    flight = ReadsInFlight[Load](at_once, at_once * RUN_BYTES)
    with closing(flight.yield_results(_Planning(places, pieces, flight).steps())) as found:
        for load in found:
            yield load
            if load.gone:
                return


class _Planning:
    """Plans the requests of the pieces."""

    def __init__(
        self, places: Sequence[Place], pieces: Sequence[Piece], flight: ReadsInFlight[Load]
    ) -> None:
        self._places = places
        self._pieces = pieces
        self._flight = flight
        self._indexes: dict[int, Future[SparseIndex | None]] = {}
        self._looked = 0

    def steps(self) -> Plan[Load]:
        """Yield the reads, see parallel_reads.Plan."""
        at = 0
        while at < len(self._pieces):
            self._request_indexes()
            stop = self._together(at)
            if stop > at:
                step, at = self._small(at, stop)
                yield step
            else:
                yield from self._large(at)
                at += 1

    def _request_indexes(self) -> None:
        """Request the indexes of the following large pieces."""
        while len(self._indexes) < INDEXES_AHEAD and self._looked < len(self._pieces):
            piece = self._pieces[self._looked]
            if _is_large(piece):
                asked = self._flight.submit(read_index, self._places[piece.place], piece)
                self._indexes[self._looked] = asked
            self._looked += 1

    def _together(self, at: int) -> int:
        """Return the end of the small pieces from `at` on that are read together; `at` if that is a
        large one."""
        size, stop = 0, at
        while stop < min(len(self._pieces), at + MAX_CONCURRENT):
            piece = self._pieces[stop]
            size += piece.length + piece.index_length
            if _is_large(piece) or size > RUN_BYTES:
                break
            stop += 1
        return stop

    def _small(self, first: int, stop: int) -> tuple[Step[Load], int]:
        """Return the step of some small pieces, and its end: fewer if they are far apart, to limit
        discarded bytes."""
        while True:
            by_file: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
            for piece in self._pieces[first:stop]:
                if piece.length:
                    by_file[piece.place, piece.key] += [
                        (piece.start, piece.start + piece.length),
                        (piece.index_start, piece.index_start + piece.index_length),
                    ]
            files = {file: _join_ranges(ranges) for file, ranges in by_file.items()}
            size = sum(end - start for ranges in files.values() for start, end in ranges)
            if size <= 2 * RUN_BYTES or stop - first == 1:
                break
            stop = first + (stop - first + 1) // 2
        wanted = [
            ReadRange(self._places[place], key, start, end - start)
            for (place, key), ranges in files.items()
            for start, end in ranges
        ]
        numbered = list(enumerate(self._pieces[first:stop], first))
        return Step(wanted, partial(_small_loads, numbered, files)), stop

    def _large(self, at: int) -> Plan[Load]:
        piece = self._pieces[at]
        place = self._places[piece.place]
        asked = self._indexes.pop(at)
        yield asked
        if asked.exception() is not None:  # not started yet
            yield Step((), partial(_unread, piece, at, asked))
            return
        index = asked.result()
        if index is None:
            runs = _plain_runs(piece)
        else:
            first, _ = index.span(piece.base, 1)
            last, length = index.span(piece.end - 1, 1)
            runs = index.runs(first, last + length, RUN_BYTES)
        for position, length in runs:
            load = Load(at, index, position, length, b"")
            yield Step((ReadRange(place, piece.key, position, length),), partial(_run_load, load))


def _is_large(piece: Piece) -> bool:
    """Return True if the needed runs are looked up in the index."""
    is_whole = (piece.base, piece.end) == (piece.entry_base, piece.entry_end)
    most = RUN_BYTES if is_whole else min(SMALL_BYTES, RUN_BYTES)
    return piece.length + piece.index_length > most


def _join_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges of a file into few ranges, each at most RUN_BYTES if they were."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start - joined[-1][1] <= GAP_BYTES and stop - joined[-1][0] <= RUN_BYTES:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def _small_loads(
    pieces: Sequence[tuple[int, Piece]],
    files: Mapping[tuple[int, str], Sequence[tuple[int, int]]],
    found: Sequence[Buffer | None],
) -> Iterator[Load]:
    """Return the loads of numbered pieces. `files`: the requests of each file; `found`: the bytes,
    in that order."""
    left = iter(found)
    held = {
        file: _Held([start for start, _ in ranges], [next(left) for _ in ranges])
        for file, ranges in files.items()
    }
    for at, piece in pieces:
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
    """Ranges of a file."""

    def __init__(self, starts: Sequence[int], parts: Sequence[Buffer | None]) -> None:
        self.gone = None in parts
        self._starts = starts
        self._parts = [memoryview(b"" if part is None else part) for part in parts]

    def part(self, start: int, length: int) -> memoryview:
        """Return bytes within one of the ranges; fewer at the end of the file."""
        at = bisect_right(self._starts, start) - 1
        begin = start - self._starts[at]
        return self._parts[at][begin : begin + length]


def _unread(
    piece: Piece, at: int, asked: Future[SparseIndex | None], _: Sequence[Buffer | None]
) -> Iterator[Load]:
    """Return the marker of a piece whose index could not be read."""
    try:
        asked.result()
    except FileNotFoundError:
        yield Load(at, None, piece.start, 0, b"", gone=True)


def _run_load(load: Load, found: Sequence[Buffer | None]) -> Iterator[Load]:
    [data] = found
    yield load._replace(gone=True) if data is None else load._replace(data=data)


def _index(piece: Piece, body: Buffer) -> SparseIndex | None:
    try:
        return SparseIndex(body, piece.start, piece.length, piece.entry_base, piece.index_checksum)
    except FormatError:
        return None


def read_index(place: Place, piece: Piece) -> SparseIndex | None:
    """Read the sparse index of a piece's entry; None if it is damaged. Raises FileNotFoundError,
    PlaceError."""
    return _read_index(place, piece._replace(place=0, base=0, end=0))


@lru_cache(INDEXES_KEPT)
def _read_index(place: Place, piece: Piece) -> SparseIndex | None:
    return _index(piece, place.get_range(piece.key, piece.index_start, piece.index_length))


def _plain_runs(piece: Piece) -> Iterator[tuple[int, int]]:
    stop = piece.start + piece.length
    for position in range(piece.start, stop, RUN_BYTES):
        yield position, min(RUN_BYTES, stop - position)
