"""The partition of each row: its column `partition`, or by its key, as Kafka's Java producer.

Importing this imports numba: import it in the task, not in the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkawire_spark.encode.murmur2 import key_partitions
from kafkawire_spark.sink.options import SinkError


class Partitioner:
    """Partitions of rows. `counts` returns the number of partitions of a topic. `start`: number of
    the task, so that tasks begin with different partitions for rows without a key."""

    def __init__(self, counts: Callable[[str], int], start: int) -> None:
        self._counts = counts
        self._known: dict[str, int] = {}
        self._next = start

    def partitions(self, topic: str, rows: pa.RecordBatch) -> Any:
        """Return the partition of each row, an array of int64. Rows without a key or partition get
        the same one in this batch, as a producer's sticky partitioner does."""
        count = self._count(topic)
        names = rows.schema.names
        found = self._by_key(rows.column("key") if "key" in names else None, rows.num_rows, count)
        if "partition" not in names:
            return found
        given = rows.column("partition")
        wanted = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        valid = given.is_valid().to_numpy(zero_copy_only=False)
        wrong = wanted[valid & ((wanted < 0) | (wanted >= count))]
        if len(wrong):
            raise SinkError(
                f"a row is for partition {int(wrong[0])} of topic {topic!r}, which has {count}"
            )
        return np.where(valid, wanted, found)

    def _by_key(self, keys: pa.Array | None, rows: int, count: int) -> Any:
        sticky, self._next = self._next % count, self._next + 1
        if keys is None or keys.null_count == rows:
            return np.full(rows, sticky, np.int64)
        keys = keys.cast(pa.binary())
        out = np.empty(rows, np.int64)
        _, ends, data = keys.buffers()
        at = ends.address + 4 * keys.offset
        key_partitions(at, 0 if data is None else data.address, rows, count, out.ctypes.data)
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, out, sticky)

    def _count(self, topic: str) -> int:
        if topic not in self._known:
            self._known[topic] = self._counts(topic)
        return self._known[topic]
