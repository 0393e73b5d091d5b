"""Islands of all files, sorted by topic, partition and offset, held against what the runs said.

The second half of the audit that runs in Spark's tasks: a task has whole partitions, and their
islands come sorted, so it keeps one partition's sums and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kafkawire.spark.audit.continuity import Continuity, Found, Outcome, Range
from kafkawire.spark.audit.coverage import GAP, Coverage
from kafkawire.spark.audit.islands import Longs
from kafkawire.spark.audit.scanning import DEAD

if TYPE_CHECKING:
    import pyarrow as pa

Where = tuple[str, int]
"""Topic and partition."""
Borders = Mapping[Where, Longs]
"""Rising offsets of partitions."""


@dataclass(slots=True)
class Judgement:
    """Of one partition; `dead`: how many of the outcome's rows are dead letters."""

    outcome: Outcome
    dead: int = 0


class Judge:
    """Takes the islands of partitions, one partition after the other. `coverages`: None if no runs
    are known; else a partition that is not in it has been read by none. `borders`: between which
    offsets rows are counted."""

    def __init__(
        self, coverages: Mapping[Where, Coverage] | None, borders: Borders | None = None
    ) -> None:
        self._coverages = coverages
        self._borders = borders or {}

    def begin(self, where: Where) -> None:
        """The islands of this partition follow."""
        self._coverage = None
        if self._coverages is not None:
            self._coverage = self._coverages.get(where, Coverage())
        self._walk = Continuity(self._coverage, self._borders.get(where))
        self._dead = 0

    def feed(self, base: Longs, end: Longs, dead: NDArray[np.bool_]) -> None:
        """In the order of bases."""
        counted = ~(dead & self._in_gap(base)) if dead.any() else ~dead
        self._dead += int((end - base)[dead & counted].sum())
        self._walk.feed(base[counted], end[counted])

    def finish(self) -> Judgement:
        """Of the partition that was begun."""
        outcome = self._walk.finish()
        return Judgement(outcome, self._dead)

    def _in_gap(self, base: Longs) -> NDArray[np.bool_]:
        """Which dead letters tell of a damaged range: an account has it among its gaps."""
        if self._coverage is None or not self._coverage.stretches:
            return np.zeros(len(base), np.bool_)
        stretches = self._coverage.stretches
        gaps = np.array([each.kind == GAP for each in stretches])
        at = np.searchsorted(self._coverage.borders(), base, "right") - 1
        inside = (at >= 0) & (at < len(stretches))
        return inside & gaps[np.clip(at, 0, len(stretches) - 1)]


def judge(
    batches: Iterable[pa.RecordBatch],
    coverages: Mapping[Where, Coverage] | None,
    borders: Borders | None = None,
) -> Iterator[tuple[str, int, str]]:
    """(topic, partition, judgement as JSON) of sorted islands."""
    verdicts = Judge(coverages, borders)
    for where, portions in groupby(_portions(batches), key=lambda each: each[0]):
        verdicts.begin(where)
        for _, base, end, dead in portions:
            verdicts.feed(base, end, dead)
        yield (*where, dump(verdicts.finish()))


def _portions(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[Where, Longs, Longs, NDArray[np.bool_]]]:
    """The adjacent rows of one partition in a batch."""
    import pyarrow.compute as pc

    for batch in batches:
        if not batch.num_rows:
            continue
        partition = batch["partition"].to_numpy(zero_copy_only=False)
        topic = batch["topic"].dictionary_encode()
        code = topic.indices.to_numpy(zero_copy_only=False)
        base, end = (batch[name].to_numpy(zero_copy_only=False) for name in ("base", "end"))
        dead = pc.equal(batch["kind"], DEAD).to_numpy(zero_copy_only=False)
        changes = (partition[1:] != partition[:-1]) | (code[1:] != code[:-1])
        cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
        for low, high in pairwise(cuts):
            where = (topic.dictionary[int(code[low])].as_py(), int(partition[low]))
            yield where, base[low:high], end[low:high], dead[low:high]


def dump(judgement: Judgement) -> str:
    """Return as JSON."""
    return json.dumps(asdict(judgement))


def load(text: str) -> Judgement:
    """Parse JSON."""
    plain: dict[str, Any] = json.loads(text)
    outcome = Outcome(**plain["outcome"])
    outcome.found = {
        kind: Found(found["offsets"], found["ranges"], [Range(*each) for each in found["first"]])
        for kind, found in plain["outcome"]["found"].items()
    }
    return Judgement(outcome, plain["dead"])
