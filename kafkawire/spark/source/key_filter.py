"""Leave out the rows with other keys in a task: passing them to Spark costs more than decoding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def rows_with_keys(
    batches: Iterable[pa.RecordBatch], column: str, keys: Collection[bytes]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose `column` is one of the keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(keys), pa.binary())
    for batch in batches:
        rows = batch.filter(pc.is_in(batch.column(column), value_set=wanted))
        if rows.num_rows:
            yield rows
