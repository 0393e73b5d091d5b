"""The log in a simulation whose disk loses acknowledged data: no offset is assigned twice.

Like tests/log/test_simulation.py, with a journal damaged, removed or truncated after some ends (see
tests/kit/log/damaged_life.py). `SIM_SEEDS=500 pytest tests/log/test_damage_simulation.py` runs
more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from unittest.mock import patch

import pytest

from kafkawire.log.journal.losses import DamagedEnds
from kafkawire.log.partition.index_eviction import evict
from tests.kit.log.damaged_life import DamagedLastLife, DamagedLife, DamagedModel
from tests.kit.log.life import LIVES
from tests.kit.log.logs import FOLDER
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import run

SEEDS = int(os.environ.get("SIM_SEEDS", "30"))


def simulate(seed: int) -> DamagedModel:
    model = DamagedModel(seed)
    index_bytes = model.rng.choice((0, 1000, 1 << 20))
    with (
        patch("kafkawire.log.maintenance.indexer.evict", partial(evict, bytes_at_most=index_bytes)),
        patch("kafkawire.log.recovery.restore.MAX_INDEX_BYTES", index_bytes),
        patch("kafkawire.log.journal.ledger.TICK_MS", 50),
        patch("kafkawire.log.scheduler.TICK_MS", 50),
    ):
        for kind in [DamagedLife] * (LIVES + 1) + [DamagedLastLife]:
            model.fs.faults.__init__()  # type: ignore[misc]
            life = kind(model)
            run(life.loop, life.main())
    return model


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_no_offset_is_assigned_twice_after_any_damage(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_checker_detects_offsets_assigned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bounds that damage reports for ends of partitions, offsets are assigned again."""

    def at_least(
        self: DamagedEnds,
        number: int,
        next_offset: int,
        last_log_position: int,
        bounds: Mapping[int, int] | None,
    ) -> int:
        return next_offset

    monkeypatch.setattr(DamagedEnds, "at_least", at_least)
    with quiet(), pytest.raises(AssertionError, match=r"assigned again|assigned twice"):
        any(simulate(seed) is None for seed in range(100))


@pytest.mark.slow
def test_simulation_loses_records_sometimes() -> None:
    with quiet():
        models = [simulate(seed) for seed in range(12)]
    assert sum(bool(model.excused) for model in models) >= 3
    assert any(any(model.given_up.values()) for model in models)
    assert any(f"{FOLDER}/quarantine/report.jsonl" in model.fs.files for model in models)
    assert {text.split()[0] for model in models for text in model.harmed} >= {"flipped", "removed"}
