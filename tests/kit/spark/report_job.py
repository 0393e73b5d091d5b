"""Run all reports as one Spark program, in a process of its own on the given cluster.

python tests/kit/spark/report_job.py MASTER CONF SOURCE

It prints their findings (tests.kit.spark.reports.findings_of) as JSON.
"""

from __future__ import annotations

import json
import os
import sys

from kafkawire.reading.model.source import Source
from kafkawire_spark.reports.jobs import REPORTS, report
from kafkawire_spark.reports.scope import Request
from kafkawire_spark.session import open_session
from tests.kit.spark.reports import findings_of


def main(master: str, conf: str, source: str) -> None:
    spark = open_session(master, conf=json.loads(conf), app_name="reports test")
    made = {name: report(spark, name, Request(Source(source))) for name in REPORTS}
    print(json.dumps(findings_of(made)))
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(*sys.argv[1:])
