"""A coordinator that ends at each point of a few lives, one at a time, and starts again.

The names of points are those of tests.kit.transactions.world. Points of the log of partitions
(data, control batches, pending offsets) are not here.
"""

from __future__ import annotations

import pytest

from tests.kit.transactions.simulation import Simulation

POINTS = {
    "appended Empty": "1: InitProducerId appended, not answered",
    "producer id taken": "2: a producer id taken, not used",
    "appended PrepareAbort": "3: a fence or an abort appended, not begun",
    "appended Ongoing": "4: AddPartitions appended, not answered",
    "appended PrepareCommit": "8: a commit appended, not durable",
    "committed": "9: durable, not answered",
    "answered": "10: answered, no marker",
    "marker written": "11, 13: some markers, or all, and no CompleteCommit",
    "appended CompleteCommit": "15: complete, and the client is in the next transaction",
    "appended CompleteAbort": "15: the same after an abort",
    "appended tombstone": "16: a tombstone appended",
}
LIVES = {
    "version 1": 1,
    "version 2": 2,
    "version 2, at the end of a producer id": 6,  # 14: between PrepareX (32767) and CompleteX (N,0)
    "version 1, at the end of a producer id": 9,
    "version 2, with expiry": 7,
}


INSTANCES = 3


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
def test_one_outcome_after_a_crash_at_every_point(life: str) -> None:
    seed = LIVES[life]
    whole = Simulation(seed, crashes=0, instances=INSTANCES).run()
    assert whole.world.crashes == 0
    for number in range(1, whole.passed + 1):
        try:
            crashed = Simulation(seed, crashes=0, crash_at=number, instances=INSTANCES).run()
        except BaseException as failure:
            failure.add_note(f"seed {seed}, crash at {number}")
            raise
        assert crashed.world.crashes == 1


def test_the_lives_pass_every_point() -> None:
    seen: set[str] = set()
    for seed in LIVES.values():
        whole = Simulation(seed, crashes=0, instances=INSTANCES).run()
        for name in whole.points:
            kind, _, what = name.rpartition(" ")
            seen |= {f"{kind} {each}".strip() for each in what.split("+")}
    assert not POINTS.keys() - seen
