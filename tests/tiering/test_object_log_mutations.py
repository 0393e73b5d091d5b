"""The simulation of log objects must find what is broken on purpose: one rule at a time.

Covers: kafkawire.log.maintenance.object_release, kafkawire.log.objects.writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafkawire.log.adoption import Adoption
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.append.object_sink import ObjectSink
from kafkawire.log.earlier_logs import EarlierLogs
from kafkawire.log.maintenance import log_orphans, retention
from kafkawire.log.maintenance.object_release import ObjectRelease
from kafkawire.log.maintenance.upload_check import UploadCheck
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.objects.writer import LogObjectWriter
from kafkawire.log.partition.partition import Partition
from kafkawire.offsets.catalog.object_logs import ObjectLog
from tests.kit.seeds import quiet
from tests.kit.tier.object_lives import TermStorage
from tests.tiering.test_object_log_simulation import EXPIRED_MS, simulate

MAX_SEEDS = 200
LEASE_S = 3.0
Break = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A start does not end the logs of earlier lives."""

    async def pretend(*_: Any) -> bool:
        return True

    patch.setattr(EarlierLogs, "_fence", pretend)


def watermark_at_write(patch: pytest.MonkeyPatch) -> None:
    """Readers see what is written and not stored."""
    real = ObjectSink.add

    def add(self: ObjectSink, partition: Partition, frame: Any) -> None:
        real(self, partition, frame)
        partition.advance(frame.end)

    patch.setattr(ObjectSink, "add", add)


def completed_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """An object is acknowledged although one before it is not stored."""
    real = ObjectSink._publish

    def publish(self: ObjectSink, sequence: int) -> None:
        for gathered in self.queue.sealed:
            if gathered.stored:
                for partition, end in gathered.ends.items():
                    partition.advance(max(end, partition.high_watermark))
                callbacks, gathered.callbacks = gathered.callbacks, []
                for fn in callbacks:
                    fn(None)
        real(self, sequence)

    patch.setattr(ObjectSink, "_publish", publish)


def released_before_upload(patch: pytest.MonkeyPatch) -> None:
    """Objects are deleted although their records are in no uploaded segment."""

    async def uploaded(*_: Any) -> bool:
        return True

    patch.setattr(UploadCheck, "is_uploaded", uploaded)


def released_before_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Objects are deleted although producers are not stored without them."""
    real = ObjectRelease.run_once

    async def run_once(self: ObjectRelease) -> int:
        for at, each in enumerate(self.retained):
            self.retained[at] = replace(each, log_position=0)
        return await real(self)

    patch.setattr(ObjectRelease, "run_once", run_once)


def last_object_skipped(patch: pytest.MonkeyPatch) -> None:
    """A start leaves out the last object of a log."""
    real = EarlierLogs.end

    async def end(self: EarlierLogs, log: Any) -> Any:
        ended, found = await real(self, log)
        return ended, found[:-1]

    patch.setattr(EarlierLogs, "end", end)


def refused_put_counts(patch: pytest.MonkeyPatch) -> None:
    """An object counts as stored if there is any object of its number."""

    async def check(*_: Any) -> None: ...

    patch.setattr(LogObjectWriter, "_check_own", check)


def checkpoint_of_what_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint waits for the fsync only."""

    async def durable(self: CommitLog) -> None:
        await self.disk_sink.wait_until_durable()

    patch.setattr(CommitLog, "wait_until_durable", durable)


def journals_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A start does not store what only its journals have."""

    async def gather(*_: Any) -> None: ...

    patch.setattr(ObjectLogs, "_gather_unstored", gather)


def producers_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Batches that are appended at a start are not taken into the producers."""
    patch.setattr(Adoption, "_replay", lambda *_: None)


def fence_collected(patch: pytest.MonkeyPatch) -> None:
    """The fence of a log is deleted with the other objects that are not needed."""

    def is_orphan(log: ObjectLog, sequence: int) -> bool:
        return sequence < log.released or (log.ended is not None and sequence >= log.ended)

    patch.setattr(log_orphans, "is_orphan", is_orphan)


def lease_by_clock(patch: pytest.MonkeyPatch) -> None:
    """A process acknowledges what it has written, without waiting for an object, as long as its own
    clock says that it has just stored one: no other process can have begun since then."""
    publish, wait = ObjectSink._publish, ObjectSink.wait
    stored_s: dict[ObjectSink, float] = {}

    def published(self: ObjectSink, sequence: int) -> None:
        stored_s[self] = self._log.env.clock.monotonic()
        publish(self, sequence)

    def waited(self: ObjectSink, callbacks: list[Any]) -> None:
        if self._log.env.clock.monotonic() - stored_s.get(self, -1e9) < LEASE_S:
            for fn in callbacks:
                fn(None)
            return
        wait(self, callbacks)

    patch.setattr(ObjectSink, "_publish", published)
    patch.setattr(ObjectSink, "wait", waited)


def no_epoch_guard(patch: pytest.MonkeyPatch) -> None:
    """Rows of partitions are changed by a process that was superseded. The guard of the product is
    a statement of SQL (kafkawire.offsets.catalog.sql.statements); this is its model."""
    patch.delattr(TermStorage, "_require_leader")


def expired_early(patch: pytest.MonkeyPatch) -> None:
    """Records expire before the wall clock says so."""
    real = retention.due

    def due(partition: Partition, now_ms: int) -> int:
        return real(partition, now_ms + EXPIRED_MS)

    patch.setattr(retention, "due", due)


MUTATIONS: list[Break] = [
    expired_early,
    no_fence,
    no_epoch_guard,
    fence_collected,
    lease_by_clock,
    watermark_at_write,
    completed_out_of_order,
    released_before_upload,
    released_before_checkpoint,
    last_object_skipped,
    refused_put_counts,
    checkpoint_of_what_is_not_stored,
    journals_not_stored,
    producers_not_replayed,
]


def first_failing() -> int:
    """The first seed that fails; -1 if none does."""
    with quiet():
        for seed in range(MAX_SEEDS):
            try:
                simulate(seed)
            except (AssertionError, TimeoutError):
                return seed
    return -1


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_simulation_finds_what_is_broken(monkeypatch: pytest.MonkeyPatch, mutate: Break) -> None:
    mutate(monkeypatch)
    seed = first_failing()
    print(f"{mutate.__name__}: seed {seed}")
    assert seed >= 0
