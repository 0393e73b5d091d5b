"""Choose the blocks of segments that may have a key by filter packs and key indexes.

Files that a filter pack excludes are not read. Another one needs one request if its index is small,
otherwise three: its end, the head of the section, and the row of the key. They are sent for many
files concurrently. The section's own checksum covers more than is read; head and chunks have
checksums of their own.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import KEYS, Section, SparseIndex, read_trailer
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.codec.segment.keys import HEAD_BYTES, PartitionKeys, head_length, read_keys
from kafkawire.codec.types import Buffer
from kafkawire.reading.files.filter_packs import without_keys
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.read_ahead import read_index
from kafkawire.reading.model.source import Piece

logger = logging.getLogger(__name__)

REQUESTS_AT_ONCE = 32
"""Concurrent requests; each is small, and waits for the first byte most of the time."""
END_BYTES = 64 << 10
"""Bytes read of the end of a file, at no more time than its trailer alone: all of the section if
there are up to 20,000 keys."""
HEAD_GUESS_BYTES = 16 << 10
"""Bytes read of the start of a larger section: the head for up to 2,000 key blocks."""
MIN_WHOLE_BYTES = 128 << 10
MIN_PART_BYTES = 1 << 20
"""Pieces of up to this size are read without their index, a key block and what one request reads at
no extra cost: the second for a part of an entry, as that is where a search for the latest begins.
"""
MAX_CHUNKS = 4
"""For more chunks of filters than this one request reads all of them, 3 % of the records."""
INDEXES_KEPT = 16
"""Heads of sections kept for the next search, which often continues in the same file. One has 40
bytes a partition and 8 a key block."""


class KeyIndexBlocks:
    """The KeyBlocks of segments that have a key index; others are read completely."""

    def narrowed(
        self, places: Sequence[Place], pieces: Sequence[Piece], keys: Collection[bytes]
    ) -> Sequence[Piece]:
        """Return the pieces as KeyBlocks.narrowed does. Raises PlaceError."""
        hashes = frozenset(map(key_hash, keys))
        found: list[Sequence[Piece]] = [[piece] for piece in pieces]

        def choose(numbers: Sequence[int]) -> list[Sequence[Piece]]:
            mine = [pieces[at] for at in numbers]
            return _choose(places[mine[0].place], mine, hashes)

        # Its threads are started by the first requests.
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "kafkawire-keys") as pool:
            excluded = without_keys(places, pieces, hashes, pool)
            files: dict[tuple[int, str], list[int]] = defaultdict(list)
            for at, piece in enumerate(pieces):
                if at in excluded:
                    found[at] = []
                elif _is_worth_it(piece):
                    files[piece.place, piece.key].append(at)
            for numbers, chosen in zip(
                files.values(), pool.map(choose, files.values()), strict=True
            ):
                for at, each in zip(numbers, chosen, strict=True):
                    found[at] = each
        return list(chain.from_iterable(found))


def _is_worth_it(piece: Piece) -> bool:
    is_whole = (piece.base, piece.end) == (piece.entry_base, piece.entry_end)
    return piece.size_bytes > (MIN_WHOLE_BYTES if is_whole else MIN_PART_BYTES)


def _choose(
    place: Place, pieces: Sequence[Piece], hashes: Collection[int]
) -> list[Sequence[Piece]]:
    """Return what is left of each of these pieces, which are in one file."""
    key, size = pieces[0].key, pieces[0].file_bytes
    try:
        section = _open(place, key, size)
        if section is not None:
            return [section.narrowed(place, piece, hashes) for piece in pieces]
    except FileNotFoundError:
        pass  # it was replaced, which reading it reports
    except FormatError as failure:
        logger.warning("%s: %s; all its records are searched for keys", place.where(key), failure)
    return [[piece] for piece in pieces]


@lru_cache(INDEXES_KEPT)
def _open(place: Place, key: str, file_bytes: int) -> _KeySection | None:
    """Read the head of a file's section. None: it has none. Raises FormatError,
    FileNotFoundError, PlaceError."""
    start = max(0, file_bytes - END_BYTES)
    tail = place.get_range(key, start, file_bytes - start)
    found = read_trailer(tail, file_bytes).optional(KEYS)
    if found is None:
        return None
    if found.body_start >= start:
        body = memoryview(tail)[found.body_start - start : found.stop - start]
        return _KeySection(found, read_keys(body, found.length), bytes(body))
    head = place.get_range(key, found.body_start, min(found.length, HEAD_GUESS_BYTES))
    size = head_length(head[:HEAD_BYTES], found.length)
    if size > len(head):
        head = place.get_range(key, found.body_start, size)
    return _KeySection(found, read_keys(head, found.length), b"")


class _KeySection(NamedTuple):
    """The section of a file; `body`: all of it, or nothing."""

    section: Section
    partitions: Mapping[int, PartitionKeys]
    body: bytes

    def narrowed(self, place: Place, piece: Piece, hashes: Collection[int]) -> Sequence[Piece]:
        """Return the parts of a piece that may have one of the keys."""
        keys = self.partitions.get(piece.number)
        if keys is None:
            return [piece]
        blocks = self._blocks(place, piece, keys, hashes)
        if len(blocks) == keys.shape.blocks:
            return [piece] if blocks else []
        index = read_index(place, piece) if blocks else None
        if index is None:
            return [piece] if blocks else []
        return list(_parts(piece, keys, index, sorted(blocks)))

    def _blocks(
        self, place: Place, piece: Piece, keys: PartitionKeys, hashes: Collection[int]
    ) -> set[int]:
        """Return the numbers of the key blocks that may have one of the keys."""
        by_chunk: dict[tuple[int, int], list[int]] = defaultdict(list)
        for each in hashes:
            by_chunk[keys.place(each)].append(each)
        start, held = 0, memoryview(self.body)
        if not self.body and len(by_chunk) > MAX_CHUNKS:
            start = keys.start
            held = memoryview(self._read(place, piece, start, keys.shape.stored_bytes))
        blocks: set[int] = set()
        for (at, length), some in by_chunk.items():
            chunk: Buffer
            if held:
                chunk = held[at - start : at - start + length]
            else:
                chunk = self._read(place, piece, at, length)
            for each in some:
                blocks.update(keys.find(each, chunk))
        return blocks

    def _read(self, place: Place, piece: Piece, at: int, length: int) -> bytes:
        return place.get_range(piece.key, self.section.body_start + at, length)


def _parts(
    piece: Piece, keys: PartitionKeys, index: SparseIndex, blocks: Sequence[int]
) -> Iterator[Piece]:
    """Yield the parts of a piece with these key blocks, of which there are some; adjacent ones are
    one part. FormatError if the key blocks are not those of the sparse index."""
    at = 0
    while at < len(blocks):
        last = at
        while last + 1 < len(blocks) and blocks[last + 1] == blocks[last] + 1:
            last += 1
        after = blocks[last] + 1
        base = _offset(piece, index, keys.positions[blocks[at]])
        end = piece.end
        if after < len(keys.positions):
            end = min(end, _offset(piece, index, keys.positions[after]))
        base = max(base, piece.base)
        if base < end:
            yield piece._replace(base=base, end=end)
        at = last + 1


def _offset(piece: Piece, index: SparseIndex, position: int) -> int:
    """Return the first offset of the block at a position after the piece's start."""
    at = index.find(piece.start + position)
    start, _, offset, _, _ = index.block(at)
    if start != piece.start + position:
        raise FormatError("its key index does not fit its batches")
    return offset if at else piece.entry_base
