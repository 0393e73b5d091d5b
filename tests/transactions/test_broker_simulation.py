"""A whole broker with transactional clients, in a seeded simulation through the real handlers.

Producers of both versions of the protocol, zombies, consume-transform-produce groups and
read_committed readers (hot, warm and cold) live through kills, power failures, full disks, clock
jumps and a bucket that fails; tests.kit.exactly_once.checker judges the history. The checker and
the simulation are tested by mutations: with one rule of the broker broken, the violation is named.

`SIM_SEEDS=500 pytest tests/transactions/test_broker_simulation.py` runs more; a failing seed is in
the message, and `simulate(seed)` runs it again.

Covers: kafkawire.handlers.produce.transactional, kafkawire.handlers.produce.long,
kafkawire.broker.markers, kafkawire.broker.verification, kafkawire.transactions.coordinator,
kafkawire.transactions.service, kafkawire.transactions.marker_sender,
kafkawire.groups.model.transactional, kafkawire.groups.pending.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.broker.markers import MarkerWriter
from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.settling import CommitQueue, Effect
from kafkawire.groups.model.records import OffsetRecord
from kafkawire.groups.pending import PendingOffsets
from kafkawire.groups.shard import Shard
from kafkawire.log.partition.transactions import AbortedIndex, PartitionTransactions
from kafkawire.transactions.machine import init_producer
from kafkawire.transactions.machine.request import InitProducer
from kafkawire.transactions.machine.transaction import ONGOING, Transaction, initialize_producer
from tests.kit.exactly_once.checker import kinds
from tests.kit.exactly_once.simulation import Simulation, Violations, simulate
from tests.kit.seeds import AT_ONCE, quiet, run_seeds

SEEDS = int(os.environ.get("SIM_SEEDS", "10"))
LEVEL_SEEDS = max(4, SEEDS // 5)
SEEDS_UNTIL_NAMED = range(1, 65)
"""Seeds of which one must have the violation, run until one has it: where batches are not verified
that is one in six."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_clients_see_only_whole_committed_transactions(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, LEVEL_SEEDS, AT_ONCE))
def test_the_level_of_transactions_changes_while_they_run(first: int) -> None:
    def with_levels(seed: int) -> None:
        assert Simulation(seed, levels=True).run().finalized

    run_seeds(with_levels, first, LEVEL_SEEDS)


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    with quiet():
        once, again = simulate(2), simulate(2)
    assert once.world.rng.random() == again.world.rng.random()
    assert once.world.history.polls == again.world.history.polls
    assert once.world.history.attempts == again.world.history.attempts


# -- mutations of the broker: the checker must report each --------------------------------

Break = Callable[[pytest.MonkeyPatch], None]


def stable_is_high(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionTransactions, "stable", lambda self, high_watermark: high_watermark)


def markers_lost(patch: pytest.MonkeyPatch) -> None:
    """One marker of ten is reported as written, and is not."""
    rng, append = random.Random(1), MarkerWriter._append

    async def lossy(self: MarkerWriter, *args: Any) -> asyncio.Future[ErrorCode]:
        if rng.random() >= 0.1:
            return await append(self, *args)
        written: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        written.set_result(ErrorCode.NONE)
        return written

    patch.setattr(MarkerWriter, "_append", lossy)
    patch.setattr(MarkerWriter, "append_at_once", lambda *_: None)


def nothing_aborted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AbortedIndex, "overlapping", lambda self, start, end: [])


def not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A new instance continues with the epoch of the one before."""
    right = init_producer.initialize

    def same_epoch(at: Transaction | None, ask: InitProducer, fresh_id: int, now_ms: int) -> Any:
        if at is None or ask.producer_id >= 0 or at.state is ONGOING:
            return right(at, ask, fresh_id, now_ms)
        return initialize_producer(at, at.producer_epoch, at.producer_epoch, ask.timeout_ms, now_ms)

    patch.setattr(init_producer, "initialize", same_epoch)


def pending_visible(patch: pytest.MonkeyPatch) -> None:
    """Offsets of open transactions are current at once."""
    put, shards = PendingOffsets.put, {}
    init = Shard.__init__

    def remember(self: Shard, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        shards[id(self.offsets.pending)] = self.offsets

    def early(self: PendingOffsets, producer_id: int, record: OffsetRecord, **more: Any) -> None:
        put(self, producer_id, record, **more)
        assert record.value is not None
        shards[id(self)]._set(record, record.value)

    patch.setattr(Shard, "__init__", remember)
    patch.setattr(PendingOffsets, "put", early)


def answers_early(patch: pytest.MonkeyPatch) -> None:
    """Coordinators answer, and send markers, before the commit."""

    def early(self: CommitQueue, effects: list[Effect], *, appended: bool) -> None:
        if appended:
            self.expect_write()
        for effect in effects:
            effect()

    patch.setattr(CommitQueue, "release", early)


MUTATIONS: list[tuple[Break, set[str]]] = [
    (stable_is_high, {"early read", "aborted read"}),
    (markers_lost, {"hanging"}),
    (nothing_aborted, {"aborted read"}),
    (not_fenced, {"zombie"}),
    (pending_visible, {"early offset"}),
    (answers_early, {"zombie", "lost", "torn", "offsets out of step", "stale offset"}),
]


def is_named(expected: set[str], seeds: range, **values: Any) -> bool:
    """Whether one of the seeds has a violation of one of these kinds."""
    with quiet():
        for seed in seeds:
            try:
                Simulation(seed, **values).run()
            except Violations as violations:
                if kinds(violations.found) & expected:
                    return True
            except AssertionError:  # an answer confused a client
                continue
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("mutate", "expected"), MUTATIONS)
def test_the_checker_names_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, mutate: Break, expected: set[str]
) -> None:
    mutate(monkeypatch)
    assert is_named(expected, SEEDS_UNTIL_NAMED)


@pytest.mark.slow
@pytest.mark.parametrize("verified", [True, False])
def test_the_checker_sees_whether_batches_are_verified(verified: bool) -> None:
    """Without verification, Produces of version 1 that arrive after their producer has given up
    open transactions that no coordinator knows."""
    late = {"lives": 1, "seconds": 40.0, "late": 0.2, "version": 1}
    setting = {"transaction_partition_verification_enable": verified}
    expected = {"hanging", "aborted read", "torn"}
    seeds = range(1, 9) if verified else SEEDS_UNTIL_NAMED
    assert is_named(expected, seeds, **late, **setting) is not verified
