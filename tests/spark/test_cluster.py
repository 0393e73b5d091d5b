"""The same reading on a real Spark cluster: a master and two workers, the data in a bucket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.plugin import Factory
from tests.kit.minio import Minio
from tests.kit.spark.cluster import Cluster, cluster, result
from tests.kit.spark.reports import KITCHEN, kitchen, tier
from tests.kit.spark.session import need_java
from tests.kit.spark.topics import QUICK, Topics

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

JOB, REPORTS = "tests/kit/spark/job.py", "tests/kit/spark/report_job.py"
BUCKET = "cluster"
URL = f"s3://{BUCKET}/tier"
BEGINS_WITHIN_S = 500.0
REPORTS_WITHIN_S = 540.0  # four, each of several jobs


@pytest.fixture(scope="module")
def topics(minio: Minio, kafkawire_broker_factory: Factory) -> Topics:
    """`orders` in the bucket; the broker is stopped."""
    need_java()
    minio.client().create_bucket(Bucket=BUCKET)
    settings = {**QUICK, "tier.url": URL}
    broker = kafkawire_broker_factory(settings=settings, environ=minio.environ)
    made = Topics(broker)
    made.make("orders", 4)
    made.fill("orders", 8000)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in minio.environ.items():
            patched.setenv(name, value)
        made.until_cut(URL)
    broker.stop()
    return made


@pytest.fixture(scope="module")
def spark_cluster(
    minio: Minio, topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2, **minio.environ) as made:
        yield made


def wanted(topics: Topics) -> list[list[object]]:
    return sorted(
        [row.partition, row.offset, (row.value or b"").decode()] for row in topics.of("orders")
    )


def test_both_workers_read_and_every_row_is_read_once(
    spark_cluster: Cluster, topics: Topics
) -> None:
    found = result(spark_cluster.start_driver(JOB, URL, "orders"))
    assert sorted(found["rows"]) == wanted(topics)
    assert found["workers"] == ["0", "1"]
    assert found["tasks"] > 8


def test_reports_on_the_cluster(spark_cluster: Cluster, minio: Minio) -> None:
    url = f"s3://{BUCKET}/reports"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in minio.environ.items():
            patched.setenv(name, value)
        tier(url, kitchen())
    assert result(spark_cluster.start_driver(REPORTS, url), REPORTS_WITHIN_S) == KITCHEN


def test_killed_worker_costs_no_row(spark_cluster: Cluster, topics: Topics, tmp_path: Path) -> None:
    driver = spark_cluster.start_driver(JOB, URL, "orders", str(tmp_path))
    end = time.monotonic() + BEGINS_WITHIN_S
    while not list(tmp_path.glob("work-1.*")):  # a task of it has begun
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < end, f"no task begins:\n{spark_cluster.logs()}"
        time.sleep(0.02)
    spark_cluster.kill(1)
    found = result(driver)
    assert sorted(found["rows"]) == wanted(topics)
    begun = len(list(tmp_path.iterdir()))
    assert begun > found["tasks"], "the tasks of the worker that ended were begun again"
    assert "0" in found["workers"]
