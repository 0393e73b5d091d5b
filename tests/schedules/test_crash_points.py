"""A conversation with schedule topics, ended at each change of a file or of SQL.

Afterwards another broker starts, and every record that was acknowledged is delivered exactly once,
never early. A run tries some points; with SIM_SEEDS=500 each of them.

Covers: kafkawire.schedules.deliverer, kafkawire.schedules.states, kafkawire.schedules.service.
"""

from __future__ import annotations

import os

import pytest

from tests.kit.schedules.scripted import ScheduleScript
from tests.kit.seeds import quiet
from tests.kit.tier.crash_points import Points

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
STRIDE = 1 if SEEDS >= 500 else 40


def count_points() -> list[str]:
    points = Points()
    with quiet():
        script = ScheduleScript(points).run()
    assert len(script.delivered) > 10
    return points.names


def test_nothing_is_lost_without_faults() -> None:
    for compacted in (True, False):
        with quiet():
            script = ScheduleScript(Points(), compacted=compacted).run()
        assert len(script.delivered) > 10


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "power"])
def test_records_are_delivered_once_after_an_end_at_any_point(how: str) -> None:
    names = count_points()
    chosen = range(0 if how == "kill" else 7, len(names), STRIDE)
    print(f"{how}: {len(chosen)} of {len(names)} points")
    for number in chosen:
        with quiet():
            try:
                ScheduleScript(Points(number), how).run()
            except BaseException as failure:
                failure.add_note(f"{how} at point {number}: {names[number]}")
                raise
