"""The CPU time of a test run: of its workers and of every process that the tests started.

Each worker of xdist counts itself, the children it waited for, and those that still run at its end
(Spark's JVM). `tests/conftest.py` imports the hooks, which print the figure before the slowest
tests. Not counted are processes whose parent was killed before it waited for them.
"""

from __future__ import annotations

import resource
from typing import Any

import psutil
import pytest

_OUTPUT = "kafkawire_cpu_s"
_workers: list[float] = []
"""Seconds that workers reported. One run has one controller, so one list."""


def own_cpu_s() -> float:
    """CPU seconds of this process and its descendants, as far as the system still knows them."""
    waited = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in waited) + _running_cpu_s()


def _running_cpu_s() -> float:
    spent = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it ended meanwhile
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report from a worker of xdist to its controller."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = own_cpu_s()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive what a worker reported; one that crashed reported nothing."""
    _workers.append(getattr(node, "workeroutput", {}).get(_OUTPUT, 0.0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the CPU time of the run, where a list of the slowest tests was requested."""
    if terminalreporter.config.option.durations is None:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent = usage.ru_utime + usage.ru_stime + sum(_workers) if _workers else own_cpu_s()
    minutes, seconds = divmod(round(spent), 60)
    terminalreporter.write_line(f"CPU time of the tests: {minutes} min {seconds} s")
