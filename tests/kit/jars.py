"""Jars downloaded once by Maven and kept: those with which Spark reads Delta and Iceberg tables,
Iceberg's own REST catalog, Apache Kafka and its tools."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL = Path(__file__).parent.parent / "jars" / "install.sh"
FETCHED_WITHIN_S = 300.0


def table_jars() -> str:
    """Their paths separated by commas, the form of `spark.jars`."""
    return ",".join(_paths("tables"))


def catalog_jars() -> list[str]:
    """Paths of everything the REST catalog needs, without Hadoop's classes."""
    return _paths("catalog")


def kafka_jars() -> Path:
    """Their folder."""
    return _folder("kafka")


def newer_kafka_jars() -> Path:
    """The folder of those of Kafka 4.4, without Connect and RocksDB."""
    return _folder("kafka-4.4")


def _paths(which: str) -> list[str]:
    return [str(path) for path in sorted(_folder(which).glob("*.jar"))]


def _folder(which: str) -> Path:
    """The folder of the jars. Without them the test is skipped; where CI is set and Maven is
    installed, it fails."""
    if shutil.which("mvn") is None:
        pytest.skip("there is no Maven to fetch jars with")
    place = Path(tempfile.gettempdir()) / f"kafkawire-tests-jars-{os.getuid()}.lock"
    with place.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        found = subprocess.run(
            [str(INSTALL), which], capture_output=True, text=True, timeout=FETCHED_WITHIN_S
        )
    if found.returncode:
        message = f"the jars of tests/jars ({which}) cannot be had: {found.stderr[-500:]}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return Path(found.stdout.strip())
