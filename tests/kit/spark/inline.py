"""Tasks and audits without Spark: in the test's own process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kafkawire_spark.audit.job import judge_batches
from kafkawire_spark.audit.listing import ListedTable
from kafkawire_spark.audit.scanning import ScanFinding, scan_file, schema
from kafkawire_spark.pipeline.executors import TaskProgress, Tasks
from kafkawire_spark.pipeline.jobs.state import Done


class Inline:
    """Executes every task in this process, one after another."""

    parallelism = 1

    def run(self, tasks: Tasks, indexes: Sequence[int], progress: TaskProgress) -> list[Done]:
        """Execute these tasks; return their results."""
        found = []
        for count, index in enumerate(indexes, 1):
            done = tasks.do(index)
            if done is not None:
                found.append(done)
            progress(count)
        return found


def in_process(listed: ListedTable) -> Iterator[ScanFinding]:
    """Run without Spark, with all islands in memory: for tables known to be small."""
    islands = (
        batch for file in listed.files for batch in scan_file(listed.places[file.place], file)
    )
    found = pa.Table.from_batches(islands, schema())
    order = [(name, "ascending") for name in ("topic", "partition", "base", "end")]
    batches = iter(found.sort_by(order).to_batches())
    for batch in judge_batches(batches, listed.coverages, listed.boundaries):
        for row in batch.to_pylist():
            yield ScanFinding(**row)
