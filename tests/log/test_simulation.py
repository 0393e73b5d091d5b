"""The log in a seeded simulation: several lives of a broker on one disk, with ends of every kind.

Writers append with acks=1 and acks=all, plain and idempotent, a reader reads, records are deleted,
journals are cut into segments and these rewritten, the disk fills up, writes are short or slow, SQL
fails; then the power fails, the process dies, or it is closed. After each start every guarantee
given before must hold:

- a record acknowledged as committed is there, once, at the offset that was answered;
- a record read below the high watermark never changes (so no offset is assigned twice);
- an idempotent producer that retries until it is answered has its batch exactly once;
- there is no record that no producer wrote, and the leader epoch rises after an unclean end;
- segment rows are contiguous, and in the end there are only files and rows of live segments.

`SIM_SEEDS=500 pytest tests/log/test_simulation.py` runs more; a failing seed is in the message.
"""

from __future__ import annotations

import os
from functools import partial
from unittest.mock import patch

import pytest

from kafkawire.log.partition.index_eviction import evict
from tests.kit.log.life import LIVES, LastLife, Life
from tests.kit.log.model import Model
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.simloop import run

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
"""Seeds of the 500 of `make sim`; ten take 3 s of CPU time."""


def simulate(seed: int) -> Model:
    model = Model(seed)
    index_bytes = model.rng.choice((0, 1000, 1 << 20))
    with (
        patch("kafkawire.log.maintenance.indexer.evict", partial(evict, bytes_at_most=index_bytes)),
        patch("kafkawire.log.recovery.restore.MAX_INDEX_BYTES", index_bytes),
        patch("kafkawire.log.segments.merge.plan.MAX_SMALL", model.rng.choice((2, 4, 32))),
    ):
        for number, kind in enumerate([Life] * LIVES + [LastLife]):
            model.fs.faults.__init__()  # type: ignore[misc]
            # Old files cannot be written over: clients may have to read them.
            model.fs.in_use = (seed + number) % 3 == 0
            life = kind(model)
            run(life.loop, life.main())
    return model


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_guarantees_hold_through_any_end(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_same_seed_gives_same_run() -> None:
    """The next random number after a run shows whether everything before it was the same."""
    with quiet():
        once, again = simulate(7), simulate(7)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.promised == again.promised
