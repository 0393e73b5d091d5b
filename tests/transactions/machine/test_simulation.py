"""Transactions in a seeded simulation: producers, zombies and a coordinator that crashes anywhere.

What must hold after every crash and reload, when all has settled:
- each transaction has one outcome, the same in all partitions, and the one that was answered;
- nothing hangs: no data without a marker, no id that is being ended for ever;
- no producer id and epoch are given to two instances, and none is fenced without a reason;
- the records of an id follow the rules of epochs.

`SIM_SEEDS=500 pytest tests/transactions/machine/test_simulation.py` runs more; a failing
seed is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine import add_partitions, shard, transaction
from kafkawire.transactions.machine.decision import TransactionDecision
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import Transaction
from tests.kit.seeds import AT_ONCE, run_seeds
from tests.kit.transactions.simulation import Simulation

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))


def simulate(seed: int) -> Simulation:
    return Simulation(seed).run()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_transaction_has_one_outcome(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


def test_a_seed_repeats_itself() -> None:
    once, again = simulate(7), simulate(7)
    assert once.points == again.points
    assert once.history == again.history
    assert once.world.durable == again.world.durable


def lose_markers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard, "WRITTEN", shard.WRITTEN | {ErrorCode.NOT_LEADER_OR_FOLLOWER})


def bump_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "_bump_epoch", lambda epoch: min(epoch + 2, 32_767))


def bump_never(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "_bump_epoch", lambda epoch: epoch)


def ignore_pending(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "PREPARED", frozenset())
    patch.setattr(add_partitions, "PREPARED", frozenset())
    check_add = add_partitions.check_add
    patch.setattr(
        add_partitions, "check_add", lambda at, ask, pending: check_add(at, ask, pending=False)
    )
    patch.setattr(shard, "may_follow", lambda before, after: True)


def forget_markers_at_load(patch: pytest.MonkeyPatch) -> None:
    nothing = TransactionDecision()
    patch.setattr(TransactionShard, "decide_resumed", lambda self, id_, now_ms: nothing)


def forget_the_outcome(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "commits", property(lambda self: False))


DEFECTS = [
    lose_markers,
    bump_twice,
    bump_never,
    ignore_pending,
    forget_markers_at_load,
    forget_the_outcome,
    None,  # answers and markers before the commit
]


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_checks_see_a_defect(
    defect: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checker that never fails proves nothing."""
    if defect is not None:
        defect(monkeypatch)
    found = 0
    for seed in range(20):
        try:
            Simulation(seed, early=defect is None, crashes=0.03).run()
        except AssertionError:
            found += 1
    assert found >= 4, found


def test_the_checks_see_nothing_without_a_defect() -> None:
    for seed in range(20):
        Simulation(seed, crashes=0.03).run()
