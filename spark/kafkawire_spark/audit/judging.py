"""Compare the islands of all files, sorted by topic, partition and offset, with the run reports.

The second part of the audit in Spark tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kafkawire_spark.audit.continuity import Continuity, Found, Outcome, Range
from kafkawire_spark.audit.coverage import GAP, Coverage, Longs
from kafkawire_spark.audit.scanning import DEAD

if TYPE_CHECKING:
    import pyarrow as pa

Where = tuple[str, int]
"""Topic and partition."""
Boundaries = Mapping[Where, Longs]
"""Ascending offsets of partitions."""


@dataclass(slots=True)
class Judgement:
    """The result for one partition; `dead`: number of dead letters among the rows."""

    outcome: Outcome
    dead: int = 0


class Judge:
    """Takes the islands of one partition after another. `coverages`: None if there are no run
    reports; otherwise no run has read a partition that is missing there. `boundaries`: offsets
    between which rows are counted."""

    def __init__(
        self, coverages: Mapping[Where, Coverage] | None, boundaries: Boundaries | None = None
    ) -> None:
        self._coverages = coverages
        self._boundaries = boundaries or {}

    def start_walk(self, where: Where) -> None:
        self._coverage = None
        if self._coverages is not None:
            self._coverage = self._coverages.get(where, Coverage())
        self._walk = Continuity(self._coverage, self._boundaries.get(where))
        self._dead = 0

    def add_islands(self, base: Longs, end: Longs, dead: NDArray[np.bool_]) -> None:
        """Add islands, sorted by base."""
        counted = ~(dead & self._in_gap(base)) if dead.any() else ~dead
        self._dead += int((end - base)[dead & counted].sum())
        self._walk.add_islands(base[counted], end[counted])

    def finish(self) -> Judgement:
        outcome = self._walk.finish()
        return Judgement(outcome, self._dead)

    def _in_gap(self, base: Longs) -> NDArray[np.bool_]:
        """Return which dead letters are damaged ranges: a run report has them among its gaps."""
        if self._coverage is None or not self._coverage.stretches:
            return np.zeros(len(base), np.bool_)
        stretches = self._coverage.stretches
        gaps = np.array([each.kind == GAP for each in stretches])
        at = np.searchsorted(self._coverage.boundaries(), base, "right") - 1
        inside = (at >= 0) & (at < len(stretches))
        return inside & gaps[np.clip(at, 0, len(stretches) - 1)]


def judge(
    batches: Iterable[pa.RecordBatch],
    coverages: Mapping[Where, Coverage] | None,
    boundaries: Boundaries | None = None,
) -> Iterator[tuple[str, int, str]]:
    """Yield (topic, partition, judgement as JSON) of sorted islands."""
    verdicts = Judge(coverages, boundaries)
    # A task has whole partitions with sorted islands, so only the sums of one partition are in
    # memory.
    for where, portions in groupby(_portions(batches), key=lambda each: each[0]):
        verdicts.start_walk(where)
        for _, base, end, dead in portions:
            verdicts.add_islands(base, end, dead)
        yield (*where, dump(verdicts.finish()))


def _portions(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[Where, Longs, Longs, NDArray[np.bool_]]]:
    """Yield the adjacent rows of each partition in a batch."""
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
    return json.dumps(asdict(judgement))


def load(text: str) -> Judgement:
    plain: dict[str, Any] = json.loads(text)
    outcome = Outcome(**plain["outcome"])
    outcome.found = {
        kind: Found(found["offsets"], found["ranges"], [Range(*each) for each in found["first"]])
        for kind, found in plain["outcome"]["found"].items()
    }
    return Judgement(outcome, plain["dead"])
