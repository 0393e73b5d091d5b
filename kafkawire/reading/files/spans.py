"""The location of offsets, in columns, for a million entries of a manifest.

Like Manifest.spans for all partitions, in a tenth of the time, and for several manifests together:
a bucket's, and that of the local files of the same cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kafkawire.manifest.columns import Columns
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.format import first_entries
from kafkawire.manifest.keys import segment_key
from kafkawire.reading.model.source import Piece

Array = Any
"""A numpy array of int64."""


class Spans(NamedTuple):
    """Ascending and disjoint: the offsets [bases[i], ends[i]) are in row `entries[i]` of the
    entries of manifest `holders[i]`."""

    bases: Array
    ends: Array
    entries: Array
    holders: Array

    def take(self, which: Any) -> Spans:
        """Return some of them: a slice, a mask or indices."""
        return Spans(*[column[which] for column in self])


class Sheet:
    """A manifest as arrays."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._columns = _arrays(manifest.entries)
        self._object_columns = _arrays(manifest.objects)

    @cached_property
    def _order(self) -> Array:
        """Return entries sorted by partition and base offset."""
        return np.lexsort((self._columns["base_offset"], self._columns["number"]))

    @cached_property
    def _numbers(self) -> Array:
        return self._columns["number"][self._order]

    @cached_property
    def _firsts(self) -> Array:
        return np.array(first_entries(self.manifest.objects), dtype="i8")

    def _objects(self, entries: Array) -> Array:
        """Return the object of each of these entries."""
        return np.searchsorted(self._firsts, entries, side="right") - 1

    @cached_property
    def _keys(self) -> list[str]:
        """Return the keys of the objects' files."""
        objects = self.manifest.objects
        return [segment_key(objects.uuid(row)) for row in range(len(objects))]

    def spans(self, number: int, holder: int, end: int | None = None) -> Spans:
        """Return the spans like Manifest.spans. `end`: of the partition, if other manifests name
        objects of it, too."""
        partition = self.manifest.get_partition(number)
        if partition is None:
            return nothing()
        first, last = np.searchsorted(self._numbers, np.array([number, number + 1], dtype="u8"))
        rows = self._order[first:last]
        bases = np.maximum(self._columns["base_offset"][rows], partition.log_start)
        ends = np.minimum(self._columns["end_offset"][rows], partition.end if end is None else end)
        kept = bases < ends
        if not kept.all():
            rows, bases, ends = rows[kept], bases[kept], ends[kept]
        if not (ends[:-1] <= bases[1:]).all():
            found = self.manifest.spans(number, end)
            bases = np.array([span.base for span in found], dtype="i8")
            ends = np.array([span.end for span in found], dtype="i8")
            rows = np.array([span.entry for span in found], dtype="i8")
        return Spans(bases, ends, rows, np.full(len(rows), holder, dtype="i8"))

    def pieces(self, spans: Spans, place: int) -> list[Piece]:
        """Return pieces for these spans, which are this manifest's."""
        values = {
            name: self._columns[name][spans.entries].tolist()
            for name in (
                "start", "length", "index_start", "index_length", "index_checksum", "base_offset",
                "end_offset", "number",
            )
        }  # fmt: skip
        objects = self._objects(spans.entries)
        sizes = self._object_columns["size_bytes"][objects].tolist()
        keys = [self._keys[row] for row in objects.tolist()]
        ends, numbers = values.pop("end_offset"), values.pop("number")
        rows = zip(
            keys, *values.values(), spans.bases.tolist(), spans.ends.tolist(), ends, numbers, sizes,
            strict=True,
        )  # fmt: skip
        return [Piece(place, *row) for row in rows]

    def values(self, name: str, spans: Spans) -> Array:
        """Return a column of the entries of these spans."""
        return self._columns[name][spans.entries]

    def generations(self, spans: Spans) -> Array:
        """Return the generations of the objects of these spans."""
        return self._object_columns["generation"][self._objects(spans.entries)]


def _arrays(table: Columns[Any]) -> dict[str, Array]:
    """Return the columns of numbers by name, without a copy."""
    kinds = {"Q": "u8", "q": "i8", "I": "u4", "i": "i4"}
    return {
        name: np.frombuffer(column, dtype=kinds[form]) if len(table) else np.zeros(0, kinds[form])
        for (name, form), column in zip(table.FORM, table.columns, strict=True)
        if form in kinds
    }


def nothing() -> Spans:
    """Return empty spans."""
    empty = np.zeros(0, dtype="i8")
    return Spans(empty, empty, empty, empty)


def merge_spans(sheets: Sequence[Sheet], found: Sequence[Spans]) -> Spans:
    """Merge the spans of several manifests: for each offset the highest generation is used, and of
    equal ones the first manifest."""
    held = [spans for spans in found if len(spans.bases)]
    if len(held) < 2:
        return held[0] if held else nothing()
    together = Spans(*[np.concatenate(columns) for columns in zip(*held, strict=True)])
    together = together.take(np.lexsort((together.ends, together.bases)))
    if (together.ends[:-1] <= together.bases[1:]).all():
        return together
    generations = np.zeros(len(together.bases), dtype="i8")
    for holder in np.unique(together.holders).tolist():
        own = together.holders == holder
        generations[own] = sheets[holder].generations(together.take(own))
    return _resolve_overlaps(together, generations)


def _resolve_overlaps(spans: Spans, generations: Array) -> Spans:
    """Between two adjacent boundaries return the best of the spans that cover the range."""
    bases, ends = spans.bases.tolist(), spans.ends.tolist()
    ranks = list(zip((-generations).tolist(), spans.holders.tolist(), strict=True))
    rows: list[tuple[int, int, int]] = []
    opened: list[tuple[tuple[int, int], int]] = []
    following = 0
    for left, right in pairwise(sorted({*bases, *ends})):
        while following < len(bases) and bases[following] <= left:
            heappush(opened, (ranks[following], following))
            following += 1
        while opened and ends[opened[0][1]] <= left:
            heappop(opened)
        if not opened:
            continue
        at = opened[0][1]
        if rows and rows[-1][2] == at and rows[-1][1] == left:
            rows[-1] = rows[-1][0], right, at
        else:
            rows.append((left, right, at))
    which = np.array([at for _, _, at in rows], dtype="i8")
    return Spans(
        np.array([base for base, _, _ in rows], dtype="i8"),
        np.array([end for _, end, _ in rows], dtype="i8"),
        spans.entries[which],
        spans.holders[which],
    )
