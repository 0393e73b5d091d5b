"""Guarantees given to clients of a simulated log, and producers that outlive its processes."""

from __future__ import annotations

import random
from typing import Any

from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch, settings
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase


class Model:
    """The guarantees given so far, by (partition number, offset)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = MemoryDatabase(seed)
        self.fs = MemFileSystem(self.rng)
        self.config = settings(
            journal_bytes=self.rng.choice((4096, 1 << 14, 1 << 16)),
            journal_entries=self.rng.choice((20, 100, 1000)),
            hot_bytes=self.rng.choice((0, 20000, 1 << 20)),
            recycle_bytes=self.rng.choice((0, 1 << 17)),
            flush=self.rng.choice(("commit", "commit", "os")),
            uncommitted_max_bytes=self.rng.choice((2000, 1 << 20)),
            log_flush_offset_checkpoint_interval_ms=self.rng.choice((300, 3000)),
            log_retention_check_interval_ms=200,
            cut_interval_ms=self.rng.choice((5, 50, 100_000)),
            journal_roll_ms=self.rng.choice((10, 200, 100_000)),
            file_delete_delay_ms=self.rng.choice((0, 100)),
            segment_dead_max_ms=self.rng.choice((1, 100_000)),
        )
        self.promised: dict[tuple[int, int], bytes] = {}
        self.sent: set[bytes] = set()
        self.log_starts: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.exactly_once: dict[bytes, int] = {}
        self.producers = [Producer(self, number) for number in range(2)]
        self.counter = 0
        self.forgotten = 0
        self.write_pause_s = self.rng.choice((0.02, 0.02, 0.4))  # so that some become idle
        self.trace: list[Any] = []

    @property
    def os_mode(self) -> bool:
        return bool(self.config.flush == "os")

    def fresh_value(self) -> bytes:
        """A value that no producer sent before; some are large."""
        self.counter += 1
        value = b"%d:" % self.counter
        value += bytes(self.rng.choice((0, 10, 100, 1500)))
        self.sent.add(value)
        return value

    def record_stored(self, partition: Partition, offset: int, value: bytes) -> None:
        """Record that this offset holds this value from now on."""
        key = partition.number, offset
        assert self.promised.setdefault(key, value) == value, f"offset {key} was assigned twice"


class Producer:
    """An idempotent producer that outlives brokers: it retries until it gets a response."""

    def __init__(self, model: Model, number: int) -> None:
        self.model = model
        self.id = 1000 + number
        self.sequence = 0
        self.unanswered: list[bytes] = []

    def batch(self) -> memoryview:
        """The batch without a response, or the next one."""
        if not self.unanswered:
            count = self.model.rng.randrange(1, 4)
            self.unanswered = [self.model.fresh_value() for _ in range(count)]
        return batch(
            *self.unanswered,
            timestamp_ms=EPOCH_MS,
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=self.sequence,
        )

    def answered(self) -> list[bytes]:
        """The batch is stored: return its values."""
        stored, self.unanswered = self.unanswered, []
        self.sequence += len(stored)
        return stored
