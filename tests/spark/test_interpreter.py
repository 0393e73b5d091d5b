"""The Python of Spark's workers: the driver's, or one that was checked.

Covers: kafkawire_spark.interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.reading.files.open import open_place
from kafkawire_spark.interpreter import (
    PACKAGES,
    WorkerPythonError,
    check_worker_python,
    use_driver_python,
)
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.session import need_java


def bare(folder: Path) -> Path:
    """A Python of this version without any package."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python3"


def context(python: str = "python3", master: str = "local[2]", **conf: str) -> Any:
    return SimpleNamespace(
        pythonExec=python, master=master, getConf=lambda: conf, _python_includes=[]
    )


@pytest.fixture
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


@pytest.mark.usefixtures("no_setting")
def test_local_workers_use_the_drivers_python() -> None:
    session = context()
    use_driver_python(session)
    assert session.pythonExec == sys.executable


@pytest.mark.usefixtures("no_setting")
def test_cluster_workers_keep_their_python() -> None:
    session = context("/opt/no/such/python", "spark://host:7077")
    use_driver_python(session)
    assert session.pythonExec == "/opt/no/such/python"


def test_a_python_without_packages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = bare(tmp_path / "bare")
    monkeypatch.chdir(tmp_path)  # a worker imports from its working folder, too
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    with pytest.raises(WorkerPythonError) as refused:
        use_driver_python(context(str(python)))
    assert str(refused.value) == (
        f"Spark's workers use {python}, which has no numba, numpy, pyarrow, kafkawire, "
        f"kafkawire_spark: set PYSPARK_PYTHON={sys.executable}, or the path of another Python with "
        "kafkawire[spark], before the session is started"
    )


def test_a_python_of_another_version_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho '[\"3.8\", []]'\n")
    old.chmod(0o755)
    with pytest.raises(WorkerPythonError, match=r"which is Python 3\.8, not 3\."):
        check_worker_python(str(old), PACKAGES)


def test_a_python_that_is_not_here_or_does_not_start_is_left_to_spark(tmp_path: Path) -> None:
    check_worker_python("./environment/bin/python", PACKAGES)
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    check_worker_python(str(broken), PACKAGES)


DRIVER = """
import sys
from pyspark.sql import SparkSession
import kafkawire_spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
kafkawire_spark.register(spark)
reader = spark.read.format("kafkawire").option("source", sys.argv[1]).option("subscribe", "t")
print("ROWS", reader.load().count())
spark.stop()
"""


@pytest.mark.real
def test_driver_of_an_environment_that_is_not_activated_reads(tmp_path: Path) -> None:
    """The `python3` of PATH has no pyarrow: "Python worker exited unexpectedly (crashed)"."""
    need_java()
    files = Files(open_place(str(tmp_path / "tier")))
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [40, 60])))
    files.publish()
    python, java = bare(tmp_path / "bare"), shutil.which("java") or ""
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environ["PATH"] = os.pathsep.join((str(python.parent), os.path.dirname(java), os.defpath))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "tier")],
        capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert (done.returncode, "ROWS 100" in done.stdout) == (0, True), done.stderr[-3000:]
