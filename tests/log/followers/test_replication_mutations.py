"""The simulation of followers must find what is broken on purpose: one rule at a time.

Three rules have tests of their own, since seeds rarely get there: a restarted follower takes
nothing back (test_in_sync), the set of a folder that is not complete has a follower
(test_incomplete_folder), and frames state what is true of all copies (test_torn_copy).

Covers: kafkawire.log.followers.in_sync, kafkawire.log.maintenance.retention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.log.append.follower_sink import FollowerSink
from kafkawire.log.followers.in_sync import InSyncSet
from kafkawire.log.followers.link import ReplicatedLog
from kafkawire.log.followers.service import Replication
from kafkawire.log.followers.source import FollowerSource
from kafkawire.log.maintenance.retention import Retention
from kafkawire.offsets.catalog import replica_sets
from kafkawire.replication.journal_copy import NO_LIMIT
from kafkawire.replication.node_copies import NodeCopies
from tests.kit.seeds import quiet
from tests.log.followers.test_replication_simulation import simulate

MAX_SEEDS = 200
FIRST_SEED = {"copies_are_not_cut": 110, "established_early": 20}
"""Where few seeds find a mutation, the search begins near one that does: any would do."""
Break = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
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


MUTATIONS: list[Break] = [
    no_fence,
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


def first_failing(first: int) -> int:
    """Return the first seed from `first` on that fails; -1 if none does."""
    with quiet():
        for seed in range(first, first + MAX_SEEDS):
            try:
                simulate(seed)
            except (AssertionError, TimeoutError):
                return seed
    return -1


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_simulation_finds_what_is_broken(monkeypatch: pytest.MonkeyPatch, mutate: Break) -> None:
    mutate(monkeypatch)
    seed = first_failing(FIRST_SEED.get(mutate.__name__, 0))
    print(f"{mutate.__name__}: seed {seed}")
    assert seed >= 0
