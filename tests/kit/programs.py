"""Programs of tests/programs, built once by the toolchain of their language and kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL = Path(__file__).parent.parent / "programs" / "install.sh"
TOOLCHAINS = {"franz-go": "go", "helm": "go", "rdkafka": "cargo"}
BUILT_WITHIN_S = 900.0


def promtool() -> Path:
    """Return the path of Prometheus' promtool. Without it the test is skipped, also where CI is
    set: it is a package of Debian, which not every system has."""
    done = _installed([str(INSTALL.parent / "promtool.sh")])
    if done.returncode:
        pytest.skip(f"there is no promtool: {done.stderr[-300:]}")
    return Path(done.stdout.strip())


def program(name: str) -> Path:
    """Return the path of a program. Without its toolchain the test is skipped; where CI is set and
    the toolchain is there, a failed build fails the test."""
    if shutil.which(TOOLCHAINS[name]) is None:
        pytest.skip(f"there is no {TOOLCHAINS[name]} to build the program of {name} with")
    done = _installed([str(INSTALL), name])
    if done.returncode:
        message = f"the program of {name} cannot be built: {done.stderr[-800:]}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return Path(done.stdout.strip())


def _installed(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a script that installs a program and prints its path; one at a time on a machine."""
    lock = Path(tempfile.gettempdir()) / f"kafkawire-tests-programs-{os.getuid()}.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        return subprocess.run(
            ["sh", *command], capture_output=True, text=True, timeout=BUILT_WITHIN_S
        )
