"""Hypothesis profiles and hooks of every test run.

`deterministic` is used on every run, others by HYPOTHESIS_PROFILE: `quick` in `make check`,
`exhaustive` for a night. The header names the MinIO that tests use.
"""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from functools import cache

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from typer.main import get_command

from kafkawire.cli.version import is_compiled
from tests.kit import compiled
from tests.kit import minio as kit_minio
from tests.kit.azurite import azure_url, azurite  # noqa: F401  (fixtures, by name)
from tests.kit.cpu_time import (  # noqa: F401  (hooks, by name)
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.kit.failures import print_failures
from tests.kit.jvm import shorten_spark
from tests.kit.minio import (  # noqa: F401  (fixtures, by name)
    encrypting_minio,
    encrypting_tier,
    minio,
    tier_url,
)
from tests.kit.postgres import postgres_url  # noqa: F401  (likewise)
from tests.kit.spark.session import spark  # noqa: F401  (likewise)

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
shorten_spark()
# pytest imports readline, which sets COLUMNS for the workers of xdist and thereby the width of
# tables.
os.environ.pop("COLUMNS", None)


GC_THRESHOLDS = (20_000, 20, 20)
"""Thirty times Python's: modules and tests of a run create a million objects that live to its
end."""

OURS = {"kafkawire", "log", "offsets", "groups", "tiering"}


@pytest.hookimpl(trylast=True)  # after pytest has made its reporter
def pytest_configure(config: pytest.Config) -> None:
    """Import our own modules without pytest's rewriting of assertions.

    Since a plugin is among them, pytest would rewrite the asserts of all of them, for which it
    parses; where two threads do that at once, as at a broker's start, CPython 3.11 sometimes fails
    (gh-106905). There is no setting for it.
    """
    hook = config.pluginmanager.rewrite_hook
    marked: set[str] = getattr(hook, "_must_rewrite", set())
    marked -= {name for name in marked if name.partition(".")[0] in OURS}
    getattr(hook, "_marked_for_rewrite_cache", {}).clear()
    gc.set_threshold(*GC_THRESHOLDS)
    print_failures(config)
    compiled.refuse_outdated()
    _take_interrupts()
    # Typer builds all commands again for each run, 25 ms. They keep no state: once is enough.
    setattr(typer.testing, "_get_command", cache(get_command))  # noqa: B010  (not exported)


def _take_interrupts() -> None:
    """Let SIGINT interrupt in a run that was started in the background, for which a shell ignores
    it: every process that a test starts and interrupts would inherit that."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot be tested with compiled modules, and begin with the tests of machines.

    They take a sixth of a run, and only one runs at a time. In alphabetical order, both workers of
    xdist reach them together, and each waits for the other. The first worker has the first items.
    """
    compiled.skip_interpreted(items)
    items.sort(key=lambda item: item.get_closest_marker("machines") is None)  # stable


def pytest_collection_finish() -> None:
    """Exclude the objects imported so far from every collection: a test that collects garbage, to
    check that nothing is kept, would walk through all of them for most of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def collected_garbage() -> Iterator[None]:
    """Collect garbage after each module, so that a file or socket that was left open is reported
    there and not in a later module. What lives on is excluded from every later collection."""
    yield
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """One line at the top of every run."""
    found = kit_minio.source()
    modules = "compiled (make slow removes it)" if is_compiled() else "interpreted"
    words = found.words if found else "none, so tests that need it fail in CI or skip"
    return f"hot modules: {modules}; MinIO: {words}"
