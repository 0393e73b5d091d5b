"""Exclude segments by the filter packs of a bucket: one request for up to 64 of them.

A pack is used where it takes fewer requests than the filters of the segments it covers. It states
which objects it covers, and only these are excluded. A list or pack that is damaged or of a newer
version is a warning, and so is one that is gone; the filters of the segments are read instead.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.filter_pack import PackStripe, read_stripe
from kafkawire.manifest.keys import PACK_LIST, pack_key, segment_uuid
from kafkawire.manifest.packs import FilterPack, PackList, read_packs
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import Piece

logger = logging.getLogger(__name__)

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
