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
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, Protocol

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.filter_pack import PackStripe, read_stripe
from kafkawire.codec.segment.format import KEYS, Section, SparseIndex, read_trailer
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.codec.segment.keys import HEAD_BYTES, PartitionKeys, head_length, read_keys
from kafkawire.codec.types import Buffer
from kafkawire.manifest.keys import PACK_LIST, pack_key, segment_uuid
from kafkawire.manifest.packs import FilterPack, PackList, read_packs
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.read_ahead import read_index
from kafkawire.reading.model.source import Piece

logger = logging.getLogger(__name__)


class KeyBlocks(Protocol):
    """Chooses the blocks that may have a key. It may choose too many, never too few. Readers that
    search by key pass the pieces of their plan through it before they read any."""

    def narrow(
        self, places: Sequence[Place], pieces: Sequence[Piece], keys: Collection[bytes]
    ) -> Sequence[Piece]:
        """Return the pieces, ascending as given, with `base` and `end` around the blocks that may
        have one of the keys: none for a piece without them, several for one with blocks far apart.

        A piece whose filters are absent or damaged is returned as it is. Called once per plan with
        all pieces, so that filters of many files can be read concurrently.
        """


# Filter packs exclude segments: one request for up to 64 of them. A pack is used where it takes
# fewer requests than the filters of the segments it covers. It states which objects it covers, and
# only these are excluded. A list or pack that is damaged or of a newer version is a warning, and so
# is one that is gone; the filters of the segments are read instead.

MIN_OBJECTS = 16
"""Segments of a bucket from which on the list of packs is read: fewer take no longer without."""


class _Question(NamedTuple):
    """A pack, and the pieces of the plan that it covers, by the uuid of their object."""

    place: Place
    pack: FilterPack
    pieces: Mapping[bytes, Sequence[int]]


def without_keys(
    places: Sequence[Place], pieces: Sequence[Piece], hashes: Collection[int], pool: Executor
) -> set[int]:
    """Return the numbers of the pieces that have none of the keys, according to packs. Requests run
    in `pool`. Raises PlaceError."""
    excluded: set[int] = set()
    for found in pool.map(
        lambda question: _answer(question, pieces, hashes),
        list(_questions(places, pieces, hashes)),
    ):
        excluded |= found
    return excluded


def _questions(
    places: Sequence[Place], pieces: Sequence[Piece], hashes: Collection[int]
) -> Iterator[_Question]:
    """Yield the packs that take fewer requests than the objects they cover."""
    by_place: dict[int, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, piece in enumerate(pieces):
        uuid = segment_uuid(piece.key)
        if uuid is not None and piece.length:
            by_place[piece.place][uuid].append(at)
    for number, objects in by_place.items():
        packs = _packs(places[number]) if len(objects) >= MIN_OBJECTS else ()
        for pack in packs:
            covered = {uuid: objects[uuid] for uuid in pack.objects if uuid in objects}
            if len(covered) > len({pack.shape.place(each) for each in hashes}):
                yield _Question(places[number], pack, covered)


def _packs(place: Place) -> Sequence[FilterPack]:
    """Return the packs of a place; none if it has no list, or one that cannot be read."""
    try:
        found: PackList = read_packs(place.get(PACK_LIST))
    except FileNotFoundError:
        return ()
    except FormatError as failure:
        logger.warning("%s: %s; the filters of each segment are read", place.url, failure)
        return ()
    return found.packs


def _answer(question: _Question, pieces: Sequence[Piece], hashes: Collection[int]) -> set[int]:
    """Return the numbers of the pieces without the keys."""
    place, pack, covered = question
    left = {at for some in covered.values() for at in some}
    by_stripe: dict[int, list[int]] = defaultdict(list)
    for each in hashes:
        by_stripe[pack.shape.place(each)].append(each)
    key = pack_key(pack.number)
    try:
        for number, some in by_stripe.items():
            size = pack.shape.stripe_bytes
            data = place.get_range(key, number * size, size)
            stripe = read_stripe(data, pack.number, pack.shape, number)
            left -= _candidates(stripe, covered, pieces, some)
    except (FileNotFoundError, FormatError) as failure:
        why = "it is gone" if isinstance(failure, FileNotFoundError) else failure
        text = "%s: %s; the filters of its %d segments are read"
        logger.warning(text, place.where(key), why, len(covered))
        return set()
    return left


def _candidates(
    stripe: PackStripe,
    covered: Mapping[bytes, Sequence[int]],
    pieces: Sequence[Piece],
    hashes: Collection[int],
) -> set[int]:
    """Return the numbers of the pieces that may have one of the keys, or are not in the stripe."""
    return {
        at
        for uuid, some in covered.items()
        for at in some
        if any(stripe.may_have(uuid, pieces[at].number, each) is not False for each in hashes)
    }


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

    def narrow(
        self, places: Sequence[Place], pieces: Sequence[Piece], keys: Collection[bytes]
    ) -> Sequence[Piece]:
        """Return the pieces as KeyBlocks.narrow does. Raises PlaceError."""
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
            return [section.narrow(place, piece, hashes) for piece in pieces]
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

    def narrow(self, place: Place, piece: Piece, hashes: Collection[int]) -> Sequence[Piece]:
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
