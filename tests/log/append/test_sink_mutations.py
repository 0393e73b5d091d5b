"""The simulation of a broker whose records are in log objects or at followers must find what is
broken on purpose: one rule at a time.

Three rules of followers have tests of their own, since seeds rarely get there: a restarted follower
takes nothing back (test_in_sync), the set of a folder that is not complete has a follower
(test_incomplete_folder), and frames state what is true of all copies (test_torn_copy).

Covers: kafkawire.log.maintenance.object_release, kafkawire.log.objects.writer,
kafkawire.log.followers.in_sync, kafkawire.log.maintenance.retention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafkawire.log.adoption import Adoption
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.append.follower_sink import FollowerSink
from kafkawire.log.append.object_sink import ObjectSink
from kafkawire.log.earlier_logs import EarlierLogs
from kafkawire.log.followers.in_sync import InSyncSet
from kafkawire.log.followers.link import ReplicatedLog
from kafkawire.log.followers.service import Replication
from kafkawire.log.followers.source import FollowerSource
from kafkawire.log.maintenance import log_orphans, retention
from kafkawire.log.maintenance.object_release import ObjectRelease
from kafkawire.log.maintenance.retention import Retention
from kafkawire.log.maintenance.upload_check import UploadCheck
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.objects.writer import LogObjectWriter
from kafkawire.log.partition.partition import Partition
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.replication.journal_copy import NO_LIMIT
from kafkawire.replication.messages import CopyMessage
from kafkawire.replication.node_copies import NodeCopies
from tests.kit.seeds import first_failing
from tests.kit.sinks import follower_simulation, object_simulation
from tests.kit.sinks.lives import TermStorage
from tests.kit.sinks.object_simulation import EXPIRED_MS

MAX_SEEDS = 200
FIRST_SEED = {
    "checkpoint_of_what_is_not_stored": 12,
    "completed_out_of_order": 7,
    "copies_are_not_cut": 226,
    "established_early": 48,
    "expired_early": 59,
    "fence_collected": 29,
    "follower_counts_late": 156,
    "journals_not_stored": 6,
    "leaving_follower_does_not_count": 6,
    "no_epoch_guard": 11,
    "no_fence_at_followers": 3,
    "own_fsync_is_not_needed": 5,
    "refused_put_counts": 10,
    "released_before_checkpoint": 15,
    "set_of_a_superseded_process": 4,
}
"""Where few seeds find a mutation, the search begins near one that does: any would do. A change of
the simulation may move them: a test that takes a minute prints the seed to begin with."""
LEASE_S = 3.0
Break = Callable[[pytest.MonkeyPatch], None]


# --- log objects


def no_fence_in_the_bucket(patch: pytest.MonkeyPatch) -> None:
    """A start does not end the logs of earlier lives."""

    async def pretend(*_: Any) -> bool:
        return True

    patch.setattr(EarlierLogs, "_fence", pretend)


def watermark_at_write(patch: pytest.MonkeyPatch) -> None:
    """Readers see what is written and not stored."""
    real = ObjectSink.add

    def add(self: ObjectSink, partition: Partition, frame: Any) -> None:
        real(self, partition, frame)
        partition.raise_high_watermark(frame.end)

    patch.setattr(ObjectSink, "add", add)


def completed_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """An object is acknowledged although one before it is not stored."""
    real = ObjectSink._publish

    def publish(self: ObjectSink, sequence: int) -> None:
        for gathered in self.queue.sealed:
            if gathered.stored:
                for partition, end in gathered.ends.items():
                    partition.raise_high_watermark(max(end, partition.high_watermark))
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
    real = EarlierLogs.fence_log

    async def end(self: EarlierLogs, log: Any) -> Any:
        ended, found = await real(self, log)
        return ended, found[:-1]

    patch.setattr(EarlierLogs, "fence_log", end)


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


OF_OBJECTS: list[Break] = [
    expired_early,
    no_fence_in_the_bucket,
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


# --- followers


def no_fence_at_followers(patch: pytest.MonkeyPatch) -> None:
    """A start copies a log that an earlier process may still write."""

    async def pretend(*_: Any) -> None: ...

    patch.setattr(FollowerSource, "fence", pretend)


def set_of_a_superseded_process(patch: pytest.MonkeyPatch) -> None:
    """A superseded process stores a set."""
    patch.setattr(replica_sets, "is_newest", lambda *_: True)


def follower_counts_late(patch: pytest.MonkeyPatch) -> None:
    """A follower that enters counts once its set is known to be stored."""
    patch.setattr(InSyncSet, "counted", property(lambda self: self.members))


def leaving_follower_does_not_count(patch: pytest.MonkeyPatch) -> None:
    """A follower that leaves does not count while the set without it is being stored."""

    def counted(self: InSyncSet) -> frozenset[str]:
        return self.members if self.changing is None else self.changing

    patch.setattr(InSyncSet, "counted", property(counted))


def own_fsync_is_not_needed(patch: pytest.MonkeyPatch) -> None:
    """Records are acknowledged that are not durable here."""
    real = InSyncSet.committed_position
    patch.setattr(InSyncSet, "committed_position", lambda self, _: real(self, self.written))


def followers_do_not_sync(patch: pytest.MonkeyPatch) -> None:
    """Followers acknowledge what they have written."""

    def sync(self: NodeCopies, epoch: int) -> int:
        with self._hold_lock():
            return self._current(epoch).end

    patch.setattr(NodeCopies, "sync", sync)


def established_early(patch: pytest.MonkeyPatch) -> None:
    """The first set of a process has followers that lack the start of the log."""
    real = InSyncSet._first

    def first(self: InSyncSet, now_s: float) -> frozenset[str] | None:
        start, self.start = self.start, 0
        try:
            return real(self, now_s)
        finally:
            self.start = start

    patch.setattr(InSyncSet, "_first", first)


def set_with_followers_that_lack_records(patch: pytest.MonkeyPatch) -> None:
    """A follower enters the set as soon as it is connected."""
    real = InSyncSet.due

    def due(self: InSyncSet, own: int, now_s: float) -> frozenset[str] | None:
        found = real(self, own, now_s)
        connected = [name for name, each in self.followers.items() if each.gone_s is None]
        entering = sorted({*connected} - self.members)
        free = self.established and self.changing is None
        if found is None and free and entering and len(self.members) < self.limits.wanted:
            return self.members | {entering[0]}
        return found

    patch.setattr(InSyncSet, "due", due)


def copies_are_not_cut(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps what only it got from the process before."""
    real = Replication._origin

    def origin(self: Replication) -> ReplicatedLog:
        made = real(self)
        return ReplicatedLog(
            made.cluster_id, made.node_id, made.broker_epoch, made.continues, NO_LIMIT >> 1
        )

    patch.setattr(Replication, "_origin", origin)


def journals_recycled_before_upload(patch: pytest.MonkeyPatch) -> None:
    """Journals are recycled although their records are in no uploaded segment."""

    async def is_held(*_: Any) -> bool:
        return False

    patch.setattr(Retention, "_is_held", is_held)


def checkpoint_ahead_of_followers(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint covers frames of the catalog that followers do not have."""
    patch.setattr(FollowerSink, "when_all", lambda self, fn: self.wait([fn]))


def copies_read_past_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Consumers get all that is in the copy of a follower."""
    patch.setattr(CopyMessage, "readable", property(lambda self: self.end))


OF_FOLLOWERS: list[Break] = [
    copies_read_past_the_high_watermark,
    no_fence_at_followers,
    set_of_a_superseded_process,
    follower_counts_late,
    leaving_follower_does_not_count,
    own_fsync_is_not_needed,
    followers_do_not_sync,
    established_early,
    set_with_followers_that_lack_records,
    copies_are_not_cut,
    journals_recycled_before_upload,
    checkpoint_ahead_of_followers,
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("simulate", "mutate"),
    [
        *(pytest.param(object_simulation.simulate, each, id=each.__name__) for each in OF_OBJECTS),
        *(
            pytest.param(follower_simulation.simulate, each, id=each.__name__)
            for each in OF_FOLLOWERS
        ),
    ],
)
def test_simulation_finds_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, simulate: Callable[[int], object], mutate: Break
) -> None:
    mutate(monkeypatch)
    first = FIRST_SEED.get(mutate.__name__, 0)
    seed = first_failing(simulate, range(first, first + MAX_SEEDS))
    print(f"{mutate.__name__}: seed {seed}")
    assert seed >= 0
