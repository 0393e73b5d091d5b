"""Every report over a tier in MinIO, with a local Spark; tables and plots are written there too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import Source
from kafkawire_spark.reports.jobs import REPORTS, report
from kafkawire_spark.reports.scope import Request
from tests.kit.minio import Minio
from tests.kit.spark.reports import KITCHEN, findings_of, kitchen, tier
from tests.kit.spark.session import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def test_all_reports_with_minio(spark: SparkSession, minio: Minio, tier_url: str) -> None:
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    tier(f"{tier_url}/tier", kitchen())
    request = Request(Source(f"{tier_url}/tier"))
    reported: list[tuple[str, int, int]] = []
    with environment(spark, minio.environ):
        made = {
            name: report(spark, name, request, lambda *now: reported.append(now))
            for name in REPORTS
        }
    assert findings_of(made) == KITCHEN
    assert {what for what, _, _ in reported} == {"ranges checked", "commits read", "ranges read"}
    assert all(0 <= done <= of for _, done, of in reported)
    out = open_place(f"{tier_url}/out")
    assert made["sizes"].write(out)[-1] == "sizes.png"
    assert out.get("sizes.png") == made["sizes"].plot
