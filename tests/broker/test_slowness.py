"""Limits of CPU time allow for a slow machine and for one disturbed measurement, not for more."""

from __future__ import annotations

import pytest

from tests.kit import slowness
from tests.kit.slowness import MAX_ATTEMPTS, MAX_SLOWNESS, least_cpu_time

LIMIT_S = 0.005


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "PAUSE_STEP_S", 0.0)


@pytest.mark.parametrize(
    ("reference_s", "took_s", "least_s"),
    [
        (0.001, 0.004, 0.004),  # within the limit: nothing is scaled
        (0.005, 0.02, 0.02),
        (0.002, 0.02, 0.02),  # a faster machine gets no less than the limit
        (0.010, 0.009, 0.0045),
        (1.000, 0.1, 0.1 / MAX_SLOWNESS),
    ],
)
def test_measurement_is_divided_by_slowness_of_machine(
    monkeypatch: pytest.MonkeyPatch, reference_s: float, took_s: float, least_s: float
) -> None:
    monkeypatch.setattr(slowness, "fixed_work", lambda: reference_s)
    assert least_cpu_time(lambda: took_s, LIMIT_S) == pytest.approx(least_s)


def test_least_of_all_measurements_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowness, "fixed_work", lambda: slowness.REFERENCE_S)
    disturbed = [0.02] * (MAX_ATTEMPTS - 2) + [0.01, 0.03]
    assert least_cpu_time(lambda: disturbed.pop(0), LIMIT_S) == 0.01
    assert disturbed == []
    imported = [0.02, 0.001, 0.02]
    assert least_cpu_time(lambda: imported.pop(0), LIMIT_S) == 0.001
    assert imported == [0.02]
