"""The log in a seeded simulation: several lives of a broker on one disk, each ended somehow.

Writers append with acks=1 and acks=all, plain and idempotent, a reader reads, records are deleted,
journals are cut into segments and these rewritten, the disk fills up, writes come up short or slow,
SQL fails; then the power goes, the process dies, or it is closed. After each start everything that
was ever promised must hold:

- a record acknowledged as committed is there, once, at the offset that was answered;
- what a reader once saw below the high watermark never changes (so no offset is given twice);
- an idempotent producer that retries until it is answered has its batch exactly once;
- nothing is there that nobody wrote, and the leader epoch rises when an end was not clean;
- the rows of segments join, and in the end there are no files or rows but those of living segments.

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

SEEDS = int(os.environ.get("SIM_SEEDS", "150"))
"""Of the 500 of `make sim`; ten take 3 s of CPU time."""


def simulate(seed: int) -> Model:
    model = Model(seed)
    index_bytes = model.rng.choice((0, 1000, 1 << 20))
    with (
        patch("kafkawire.log.maintenance.indexer.evict", partial(evict, bytes_at_most=index_bytes)),
        patch("kafkawire.log.recovery.restore.MAX_INDEX_BYTES", index_bytes),
        patch("kafkawire.log.segments.merge.levels.MAX_SMALL", model.rng.choice((2, 4, 32))),
    ):
        for kind in [Life] * LIVES + [LastLife]:
            model.fs.faults.__init__()  # type: ignore[misc]
            life = kind(model)
            run(life.loop, life.main())
    return model


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_promises_hold_through_any_end(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    """The next random number after a run says whether everything before it was the same."""
    with quiet():
        once, again = simulate(7), simulate(7)
    assert once.trace == again.trace
    assert once.rng.random() == again.rng.random()
    assert once.promised == again.promised
