"""Parts of a topic that can satisfy a filter: partitions, offsets, the earliest time, and keys.

DuckDB passes a filter as an expression of Arrow, which has no public form to read. But Arrow's data
sets leave out fragments whose guarantee contradicts a filter. So each question is asked with
fragments without files: "which of these partitions", "which of these ranges of offsets". The answer
may keep too much, never too little.

Keys to ask for are the constants of the expression, which its serialized form has: a filter selects
records by key if it contradicts all keys below, between and above them, and no key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from kafkawire.reading.model.columns import KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC, VALUE
from kafkawire.reading.model.source import PartitionRange

# Keys and values as text: null for what is no UTF-8.


KEY_TEXT, VALUE_TEXT = "key_text", "value_text"
ORIGINS = {KEY_TEXT: KEY, VALUE_TEXT: VALUE}
"""The column of the bytes of each column of texts."""


def with_texts(batch: pa.RecordBatch, wanted: Collection[str]) -> pa.RecordBatch:
    """Return a batch with the wanted columns of texts that it does not have yet."""
    for name, origin in ORIGINS.items():
        if name in wanted and name not in batch.schema.names:
            batch = batch.append_column(name, text_of(batch.column(origin)))
    return batch


def text_of(column: pa.Array) -> pa.Array:
    """Return binary values as strings. All of a batch are checked in one call, which fails if one
    of them is no UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(each) for each in column.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


SLICES = 64
"""Ranges of one question: with ten questions the first of 2^60 microseconds is found."""
YEARS_US = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The years 1 to 9999, which timestamps of the source are clamped to."""
MAX_KEYS = 1000
"""Constants of a filter that are compared with it as keys: 20 ms. Arrow simplifies lists of up to
50 of them; with a longer one every key is read."""

Span = tuple[int, int]
"""A range [low, high) of numbers."""


class Needed(NamedTuple):
    """Selection of a filter: some partitions, offsets [low, high), times from `since_ms` on; -1:
    any time."""

    partitions: list[int]
    low: int
    high: int
    since_ms: int


class TopicFilter:
    """A filter on a topic. `schema`: of all its columns."""

    def __init__(self, schema: pa.Schema, topic: str, expression: pc.Expression) -> None:
        self._schema, self._expression = schema, expression
        self._topic = pc.field(TOPIC) == pc.scalar(topic)
        self._files, self._format = fs.LocalFileSystem(), ds.IpcFileFormat()
        self.columns = frozenset(schema.names) & frozenset(re.findall(r"\w+", str(expression)))
        """The columns that it names; a constant may look like one, which only reads more."""

    def find_needed(self, partitions: int, low: int, high: int) -> Needed:
        """Return what it selects of a topic with this number of partitions and offsets [low,
        high)."""
        chosen = list(range(partitions))
        if {PARTITION, TOPIC} & self.columns:
            chosen = self._keep([pc.field(PARTITION) == pc.scalar(each) for each in chosen])
        since_ms = -1
        if OFFSET in self.columns:
            low, high = narrow(self._offsets, (low, high))
        if TIMESTAMP in self.columns:
            since_us, end_us = narrow(self._times, YEARS_US)
            if since_us >= end_us:
                return Needed([], low, low, -1)
            since_ms = max(-1, since_us // 1000)
        return Needed(chosen, low, high, since_ms if since_ms > 0 else -1)

    def keeps(self, ranges: Sequence[PartitionRange]) -> list[int]:
        """Return the indexes of the ranges that may have selected records."""
        place, number = pc.field(PARTITION), pc.field(OFFSET)
        return self._keep(
            [(place == each.partition) & _within(number, each.base, each.end) for each in ranges]
        )

    def keys(self) -> frozenset[bytes] | None:
        """Return the only keys of records that it may select; None if they are not known."""
        if not {KEY, KEY_TEXT} & self.columns:
            return None
        known = sorted(_constants(self._expression))
        if len(known) > MAX_KEYS or self._keep(list(_other_keys(known))):
            return None
        kept = self._keep([at for key in known for at in _this_key(key)])
        return frozenset(known[at // 2] for at in kept)

    def _offsets(self, spans: Sequence[Span]) -> list[int]:
        return self._keep([_within(pc.field(OFFSET), *span) for span in spans])

    def _times(self, spans: Sequence[Span]) -> list[int]:
        kind = self._schema.field(TIMESTAMP).type
        at = pc.field(TIMESTAMP)
        return self._keep([_within(at, pa.scalar(a, kind), pa.scalar(b, kind)) for a, b in spans])

    def _keep(self, guarantees: Sequence[pc.Expression]) -> list[int]:
        """Return the indexes of the guarantees that the filter does not contradict."""
        fragments = [
            self._format.make_fragment(str(at), self._files, self._topic & each)
            for at, each in enumerate(guarantees)
        ]
        asked = ds.FileSystemDataset(fragments, self._schema, self._format, self._files)
        return [int(each.path) for each in asked.get_fragments(filter=self._expression)]


def _within(field: pc.Expression, low: object, high: object) -> pc.Expression:
    return (field >= low) & (field < high)


def _constants(expression: pc.Expression) -> frozenset[bytes]:
    """Return the bytes and texts that are constants in an expression, and maybe some more; none
    for a serialized form that is not known."""
    try:
        [data] = expression.__reduce__()[1]
        constants = [each[0].as_py() for each in pa.ipc.open_file(data).get_batch(0).columns]
    except (pa.ArrowException, AttributeError, TypeError, ValueError):
        return frozenset()
    return frozenset(_bytes_in(constants))


def _bytes_in(constant: object) -> Iterator[bytes]:
    if isinstance(constant, dict):
        constant = list(constant.values())
    if isinstance(constant, list):
        for each in constant:
            yield from _bytes_in(each)
    elif isinstance(constant, str):
        yield constant.encode()
    elif isinstance(constant, bytes):
        yield constant


def _this_key(key: bytes) -> tuple[pc.Expression, pc.Expression]:
    """Return what holds for records with a key if its text is null, and if not."""
    is_key = pc.field(KEY) == pa.scalar(key, pa.binary())
    text, known = pc.field(KEY_TEXT), _text(key)
    return is_key & text.is_null(), is_key & (text.is_valid() if known is None else text == known)


def _other_keys(known: Sequence[bytes]) -> Iterator[pc.Expression]:
    """Yield what holds for records with other keys than these ascending ones: with no key, and with
    one between two of them, which as text is between their texts."""
    key, text = pc.field(KEY), pc.field(KEY_TEXT)
    yield key.is_null() & text.is_null()
    texts = [_text(each) for each in known]
    below = accumulate([None, *texts], _last_known)
    above = list(accumulate([None, *reversed(texts)], _last_known))
    edges = zip([None, *known], [*known, None], below, reversed(above), strict=True)
    for low, high, text_low, text_high in edges:
        between = _strictly_within(key, low, high)
        yield between & text.is_null()
        yield between & _strictly_within(text, text_low, text_high)


def _last_known(before: str | None, text: str | None) -> str | None:
    return before if text is None else text


def _strictly_within(field: pc.Expression, low: object, high: object) -> pc.Expression:
    found = field.is_valid()
    if low is not None:
        found &= field > low
    if high is not None:
        found &= field < high
    return found


def narrow(keep: Callable[[Sequence[Span]], list[int]], whole: Span) -> Span:
    """Return the narrowest range that has every kept number of `whole`, or an empty one. `keep`:
    indexes of the spans that may have one."""
    spans = _slices(whole)
    kept = keep(spans)
    if not kept:
        return whole[0], whole[0]
    first, last = spans[kept[0]], spans[kept[-1]]
    while first[1] - first[0] > 1 and (kept := keep(spans := _slices(first))):
        first = spans[kept[0]]
    while last[1] - last[0] > 1 and (kept := keep(spans := _slices(last))):
        last = spans[kept[-1]]
    return first[0], last[1]


def _slices(whole: Span) -> list[Span]:
    low, high = whole
    count = min(SLICES, high - low)
    edges = [low + (high - low) * at // count for at in range(count + 1)] if count > 0 else []
    return list(pairwise(edges))
