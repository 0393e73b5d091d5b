"""Spark registers the source by itself: no call of `register`.

Covers: kafkawire_spark.datasource, kafkawire.spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kafkawire.spark
import kafkawire_spark
from kafkawire.reading.files.open import open_place
from kafkawire_spark.datasource import KafkawireSource
from pyspark_kafkawire import DefaultSource
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.session import need_java

DRIVER = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("kafkawire").option("source", sys.argv[1]).option("subscribe", "t")
print("ROWS", reader.load().count())
assert not [name for name in sys.modules if name.startswith("kafkawire")]
spark.stop()
"""
WITHOUT_EXTRA = """
import sys
sys.modules["pyspark.sql.datasource"] = None
import pyspark_kafkawire
print(hasattr(pyspark_kafkawire, "DefaultSource"))
"""


def test_package_has_the_class_that_spark_looks_for() -> None:
    assert DefaultSource is KafkawireSource


def test_former_name_of_the_package_is_known() -> None:
    assert kafkawire.spark.register is kafkawire_spark.register


@pytest.mark.slow
def test_package_without_the_extra_is_imported() -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRA]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


@pytest.mark.real
def test_source_is_read_without_register(tmp_path: Path) -> None:
    need_java()
    files = Files(open_place(str(tmp_path / "tier")))
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [40, 60])))
    files.publish()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "tier")],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert (done.returncode, "ROWS 100" in done.stdout) == (0, True), done.stderr[-3000:]
