"""One Spark session for all tests of a worker that read through it: `local[2]`, no UI, UTC.

Mark them `real`. Without Java they are skipped, and fail where CI is set.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from kafkawire_spark import register
from kafkawire_spark.session import SessionError, find_java, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


def need_java() -> None:
    """Skip the test, or fail it where CI is set, if there is no Java to run Spark on."""
    try:
        find_java()
    except SessionError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session, with `format("kafkawire")` registered; stopped at the end."""
    need_java()
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        **CONF,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    session = open_session("local[2]", conf=conf, app_name="tests")
    yield session
    session.stop()


@contextlib.contextmanager
def environment(spark: SparkSession, environ: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for Python workers of sources that are read meanwhile. (Others have the
    environment in which the session's Java was started.)"""
    variables = spark.sparkContext.environment
    before = dict(variables)
    variables.update(environ)
    register(spark)
    try:
        yield
    finally:
        variables.clear()
        variables.update(before)
        register(spark)
