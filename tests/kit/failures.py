"""Failed and slow tests, printed when they end, and tests that hang, while they do.

A full run takes half an hour, and pytest describes failures at its end, which a run that is stopped
does not reach. `tests/conftest.py` registers this in the process that reports.
"""

from __future__ import annotations

import re
import threading
import time

import pytest

MAX_SHOWN = 200
"""Characters of an error shown at once; the whole text follows at the end."""
MAX_CAUSES = 6
"""Lines shown of an error that is a group of errors."""
SLOW_S = 60.0
"""Only a few tests take longer on a machine with nothing else to do."""
HUNG_S = 300.0
"""No test takes as long on such a machine: it waits for something that does not happen."""

_CAUSE = re.compile(r"^[ |]+((?:\w+\.)*\w*(?:Error|Warning|Exception): .*)$", re.MULTILINE)


class Failures:
    """A plugin that prints a line for each test that failed, was slow, or seems to hang."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._began: dict[str, float] = {}
        # A thread, since no report arrives while the tests of all workers hang.
        threading.Thread(target=self._watch, name="watch for hung tests", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(10)
            now = time.monotonic()
            for name, began in list(self._began.items()):
                if now - began > HUNG_S:
                    self._began.pop(name, None)
                    self._print(f"still running after {HUNG_S:.0f} s: {name}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._began.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)  # after the letter that pytest prints
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a test that failed, the phase and the first line of its error."""
        if report.duration > SLOW_S:
            self._print(f"took {report.duration:.0f} s in {report.when}: {report.nodeid}")
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        error = str(crash.message if crash else report.longrepr).partition("\n")[0]
        self._print(f"failed in {report.when}: {report.nodeid}: {error[:MAX_SHOWN]}")
        if "ExceptionGroup" in error:
            for cause in _CAUSE.findall(report.longreprtext)[:MAX_CAUSES]:
                self._reporter.write_line(f"  {cause[:MAX_SHOWN]}")

    def _print(self, line: str) -> None:
        self._reporter.write("\n")
        self._reporter.write_line(line)


def print_failures(config: pytest.Config) -> None:
    """Register the plugin; do nothing in a worker of xdist, whose reports the controller gets."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(reporter), "kafkawire-failures")
