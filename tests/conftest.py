"""Hypothesis profiles: `deterministic` on every run, others by HYPOTHESIS_PROFILE: `quick` in
`make check`, `exhaustive` for a night."""

import os

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "deterministic",
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_QUIET,
)
settings.register_profile(
    "quick",
    max_examples=5,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_QUIET,
)
settings.register_profile(
    "exhaustive", max_examples=500, deadline=None, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))
