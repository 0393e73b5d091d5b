"""A driver that commits micro-batches to a real broker, and is killed at a request of a commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkawire.reading.files.locations import Place
from kafkawire_spark.sink import transaction
from kafkawire_spark.sink.options import parse_options
from kafkawire_spark.sink.rows import Partitioner, RowEncoder
from kafkawire_spark.sink.staging import StagedPart, StagingWriter
from kafkawire_spark.sink.transaction import BatchIdentity, SinkConnection, SinkTransaction
from tests.kit.spark.sink import Killed

STEPS = ("init_producer", "fetch_committed_offsets", "add_partitions", "append", "add_offsets",
         "commit_offsets", "end")  # fmt: skip
ROWS = 40


class Driver:
    """A driver that commits micro-batches of a query to a topic of its own."""

    def __init__(self, bootstrap: str, topic: str, place: Place | None = None) -> None:
        self._bootstrap, self._topic, self._place = bootstrap, topic, place
        self._options = parse_options(
            {"kafka.bootstrap.servers": self._bootstrap, "topic": topic, "batchBytes": "500"},
            streaming=True,
        )

    def commit(self, number: int) -> bool:
        connection = SinkConnection(self._bootstrap)
        try:
            identity = BatchIdentity(f"id-{self._topic}", number, "query")
            made = SinkTransaction(connection, self._options, identity, self._place)
            return made.commit(self._staged(number, connection))
        finally:
            connection.close()

    def _staged(self, number: int, connection: SinkConnection) -> tuple[StagedPart, ...]:
        values = [b"%d-%d" % (number, row) for row in range(ROWS)]
        partitioner = Partitioner(connection.partitions, 0)
        encoder = RowEncoder(self._options, partitioner, StagingWriter(self._place, "q"))
        return encoder.encode([pa.record_batch({"key": values, "value": values})])


def wanted(*numbers: int) -> Counter[bytes]:
    return Counter(b"%d-%d" % (number, row) for number in numbers for row in range(ROWS))


def at_step(
    monkeypatch: pytest.MonkeyPatch, step: str, when: str, strike: Callable[[], None]
) -> None:
    """Call `strike` before or after the first call of this step; the calls of a killed driver after
    it fail, too."""
    struck: list[bool] = []

    def patched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if struck and struck[0]:
                raise Killed
            if name != step or struck:
                return call(*given, **named)
            if when == "before":
                hit()
            found = call(*given, **named)
            if when == "after":
                hit()
            return found

        return run

    def hit() -> None:
        struck.append(False)
        try:
            strike()
        except Killed:
            struck[0] = True
            raise

    for name in STEPS:
        monkeypatch.setattr(transaction, name, patched(name, getattr(transaction, name)))


def killed() -> None:
    raise Killed
