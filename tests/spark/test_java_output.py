"""The standard error of processes started in the block: without one warning of Java."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kafkawire_spark.session import LEFT_OUT, without_incubator_warning

CHILD = """
import sys, time
for part in sys.argv[1:]:
    sys.stderr.write(part.encode().decode("unicode_escape"))
    sys.stderr.flush()
    time.sleep(0.02)
"""


def written(capfd: pytest.CaptureFixture[str], *parts: str) -> str:
    """Return what reaches the standard error of this process when a child writes these parts."""
    others = set(threading.enumerate())  # as of a session that other tests use: it ends with them
    with without_incubator_warning():
        child = subprocess.Popen([sys.executable, "-c", CHILD, *parts])
    print("own", file=sys.stderr)
    assert child.wait(90) == 0
    for thread in set(threading.enumerate()) - others:
        thread.join(90)
    return capfd.readouterr().err


def test_only_the_warning_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    warning = LEFT_OUT.decode()
    found = written(capfd, "first\\n", warning + "\\n", "an error\\nof two lines\\n", "no end")
    assert sorted(found.replace("own\n", "").splitlines()) == [
        "an error", "first", "no end", "of two lines",
    ]  # fmt: skip
    assert found.count("own\n") == 1


def test_warning_in_pieces_is_left_out_and_similar_lines_are_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    begin, end = "WARNING: Using ", "incubator modules: jdk.incubator.vector\\n"
    found = written(capfd, begin, end, begin, "the wrong Java\\n", "x " + begin + end, "WARN")
    lines = found.replace("own\n", "").splitlines()
    assert lines == [
        "WARNING: Using the wrong Java",
        "x WARNING: Using incubator modules: jdk.incubator.vector",
        "WARN",
    ]
