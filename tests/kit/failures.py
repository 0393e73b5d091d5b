"""Failed tests, printed as soon as they fail.

A full run takes half an hour, and pytest describes failures at its end. `tests/conftest.py`
registers this in the process that reports.
"""

from __future__ import annotations

import pytest

MAX_SHOWN = 200
"""Characters of an error shown at once; the whole text follows at the end."""


class Failures:
    """A plugin that prints a line for each failed test."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)  # after the letter that pytest prints
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a test that failed, the phase and the first line of its error."""
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        error = str(crash.message if crash else report.longrepr).partition("\n")[0]
        self._reporter.write("\n")
        self._reporter.write_line(f"failed in {report.when}: {report.nodeid}: {error[:MAX_SHOWN]}")


def print_failures(config: pytest.Config) -> None:
    """Register the plugin; do nothing in a worker of xdist, whose reports the controller gets."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(reporter), "kafkawire-failures")
