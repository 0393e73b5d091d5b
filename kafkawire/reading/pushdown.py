"""Filters of a query that planning uses to skip records. Pure.

A filter on topic or partition, or a bound of the offset, is applied completely: all returned rows
satisfy it. Of a timestamp only the lower bound is used, to start later: records may be out of time
order, so Spark checks each again, as it does for keys, of which `=` and `IN` leave out blocks and
rows. All other filters are returned to Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafkawire.reading.limits import OFFSET_MAX
from kafkawire.reading.model.columns import KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC
from kafkawire.reading.model.source import PartitionRange

_EQUALS = ("EqualTo", "EqualNullSafe")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, values: value in values,
    "StringStartsWith": lambda value, other: value.startswith(other),
    "StringEndsWith": lambda value, other: value.endswith(other),
    "StringContains": lambda value, other: other in value,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PushedCondition:
    """A condition on topic or partition: the name of Spark's filter, its value, whether negated."""

    kind: str
    name: str
    value: Any
    negated: bool

    def holds(self, value: object) -> bool:
        """Return whether the topic or partition of a range satisfies it."""
        return _OPERATORS[self.name](value, self.value) != self.negated


@dataclass(slots=True)
class Pruning:
    """Selection: offsets [low, high), of partitions that satisfy `conditions`.

    `since_ms`: skip records before the first of this time or later; -1: no bound. `keys`: only
    records with one of these; None: any.
    """

    conditions: tuple[PushedCondition, ...] = ()
    low: int = 0
    high: int = OFFSET_MAX
    since_ms: int = -1
    keys: frozenset[bytes] | None = None

    def push(self, filters: Iterable[Any], kinds: Mapping[str, str]) -> list[Any]:
        """Apply pyspark.sql.datasource filters, which are ANDed; return those that Spark must still
        check. `kinds`: of columns by their names in the query."""
        return [each for each in filters if not self._take(each, kinds)]

    def _take(self, given: Any, kinds: Mapping[str, str]) -> bool:
        """Use a filter; return whether it is applied completely."""
        negated = type(given).__name__ == "Not"
        inner = given.child if negated else given
        name, path = type(inner).__name__, inner.attribute
        kind = kinds.get(path[0]) if len(path) == 1 else None
        if name == "IsNotNull" and not negated:
            return kind in (TOPIC, PARTITION, OFFSET)
        if name not in _OPERATORS or kind is None:
            return False
        value = inner.value
        if kind in (TOPIC, PARTITION) and _comparable(name, value, str if kind == TOPIC else int):
            self.conditions += (PushedCondition(kind, name, value, negated),)
            return True
        if kind == OFFSET and not negated and _comparable(name, value, int):
            return self._limit_offsets(name, value)
        if kind == TIMESTAMP and not negated and _comparable(name, value, datetime):
            self._since(name, value)
        if kind == KEY and not negated and _comparable(name, value, (bytes, bytearray)):
            self._with_key(name, value)
        return False

    def _limit_offsets(self, name: str, value: Any) -> bool:
        if name == "In":
            self.low, self.high = max(self.low, min(value)), min(self.high, max(value) + 1)
            return False  # other values may be in between
        if name in _EQUALS or name.startswith("GreaterThan"):
            self.low = max(self.low, value + (name == "GreaterThan"))
        if name in _EQUALS or name.startswith("LessThan"):
            self.high = min(self.high, value + (name != "LessThan"))
        return True

    def _since(self, name: str, value: Any) -> None:
        if name == "In" or name in _EQUALS or name.startswith("GreaterThan"):
            first = min(value) if name == "In" else value
            aware = first if first.tzinfo else first.replace(tzinfo=UTC)
            ms = (aware - _EPOCH).total_seconds() * 1000
            self.since_ms = max(self.since_ms, int(ms) if ms >= 0 else -1)

    def _with_key(self, name: str, value: Any) -> None:
        if name in (*_EQUALS, "In"):
            keys = frozenset(map(bytes, value if name == "In" else (value,)))
            self.keys = keys if self.keys is None else self.keys & keys

    def keeps(self, topic: str, partition: int) -> bool:
        """Return True if any offset of a partition is selected."""
        values = {TOPIC: topic, PARTITION: partition}
        return all(each.holds(values[each.kind]) for each in self.conditions)

    def prune_ranges(
        self,
        wanted: Iterable[PartitionRange],
        times: Callable[[Sequence[tuple[str, int, int]]], Sequence[int | None]],
    ) -> list[PartitionRange]:
        """Return the selected parts of ranges, without empty ones. `times`: a catalog's
        `offsets_for_times`."""
        found = [
            each._replace(base=max(each.base, self.low), end=min(each.end, self.high))
            for each in wanted
            if self.keeps(each.topic, each.partition)
        ]
        found = [each for each in found if each.base < each.end]
        if self.since_ms >= 0:
            firsts = times([(each.topic, each.partition, self.since_ms) for each in found])
            found = [
                each._replace(base=each.end if first is None else max(each.base, first))
                for each, first in zip(found, firsts, strict=True)
            ]
        return [each for each in found if each.base < each.end]


def _comparable(name: str, value: Any, kind: type | tuple[type, ...]) -> bool:
    """Return True if the value is of the column's type; null follows special rules in SQL."""
    values = value if name == "In" else (value,)
    return bool(values) and all(
        isinstance(each, kind) and not isinstance(each, bool) for each in values
    )
