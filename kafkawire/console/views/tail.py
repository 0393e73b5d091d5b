"""Records of a topic from a position on, and those that are written later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError
from kafkawire.client.fetching import Fetched, fetch_partitions
from kafkawire.client.offsets import LATEST, Partition, leaders, list_offsets
from kafkawire.console.views.records import FoundRecord, RecordOrder, RecordQuery, read_records

PAGE_BYTES = 1 << 20
"""Bytes that are read before records are passed on: each open stream may hold as many."""
READ_AGAIN_S = 10.0
"""A topic without new records is read again after this time: it may have more partitions."""


class RecordTail:
    """Reads page after page, as the pages of records do, and waits at the end of the log.
    `positions`: by partition, the offset after the last record that was returned or skipped;
    `first`: the same before the last page. The search begins at the log end if `query` goes
    backward."""

    def __init__(self, query: RecordQuery, clock: Callable[[], float] = time.monotonic) -> None:
        self.positions = dict(query.positions)
        self.first: dict[int, int] = {}
        self._query = query
        self._clock = clock
        self._led_by: dict[Partition, int] = {}
        self._ready = True
        self._until = 0.0

    def read(self, cluster: Cluster, wait_ms: int) -> Sequence[FoundRecord]:
        """Return the next records of the search. Without any, wait up to `wait_ms` and return
        none: the next call has what was written. ClientError."""
        if self._query.order is RecordOrder.BACKWARD:
            led_by = leaders(cluster, [self._query.topic])
            ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
            self.positions = {index: end for (_, index), end in ends.items()}
            self._query = replace(self._query, order=RecordOrder.FORWARD)
        if self._ready or self._clock() >= self._until:
            query = replace(self._query, positions=self.positions)
            page = read_records(cluster, query, budget_bytes=PAGE_BYTES)
            self.first = {each.partition: each.first for each in page.searched}
            self.positions |= {each.partition: each.end for each in page.searched}
            self._ready = bool(page.records or page.more)
            if self._ready:
                return page.records
            self._led_by = leaders(cluster, [self._query.topic])
            self._until = self._clock() + READ_AGAIN_S
        self._wait(cluster, wait_ms)
        return []

    def _wait(self, cluster: Cluster, wait_ms: int) -> None:
        """Wait until a partition has a record at its position."""
        by_node: dict[int, dict[Partition, int]] = {}
        for place, node in self._led_by.items():
            if node >= 0 and place[1] in self.positions:
                by_node.setdefault(node, {})[place] = self.positions[place[1]]
        if not by_node:
            time.sleep(wait_ms / 1000)
        for node, positions in by_node.items():
            # One batch is enough to know it; `read_records` reads it again with its limits.
            got = fetch_partitions(cluster, node, positions, wait_ms // len(by_node), max_bytes=1)
            if any(isinstance(each, BrokerError) for each in got.values()):
                time.sleep(wait_ms / 1000)  # such as a leader that has moved
                self._ready = True
            elif any(each.records for each in got.values() if isinstance(each, Fetched)):
                self._ready = True
                return
