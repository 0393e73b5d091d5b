"""The reports by name: `report(spark, name, request)`.

Called by the command, and by programs with a Spark session.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkawire.progress import Progress, silent
from kafkawire.reading.model.source import SourceError, TaskFailed
from kafkawire_spark.reports.report import Report
from kafkawire_spark.reports.scope import ReportScope, Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORTS = {
    "continuity": "is every offset there once, and if not, why not",
    "lag": "lag of each group over time, by its commits",
    "sizes": "bytes, records and rates by topic and partition, and how uneven keys are",
    "late": "how late records are in event time",
}
INTERNAL_TOO = frozenset({"continuity"})
"""Reports that include internal topics if no topic is named."""


def report(spark: SparkSession, name: str, request: Request, progress: Progress = silent) -> Report:
    """Run the Spark jobs of one report. Raises SourceError; without a single offset, the report is
    one sentence."""
    scope = prepare_scope(name, request, progress)
    try:
        return run_report(spark, name, scope) if scope.offsets else nothing(name, scope)
    finally:
        scope.close()


def prepare_scope(name: str, request: Request, progress: Progress = silent) -> ReportScope:
    """Determine the scope of the report without Spark; it must be closed. Raises SourceError for an
    invalid name, source or topic."""
    from kafkawire.reading.catalog import open_catalog

    if name not in REPORTS:
        raise SourceError(f"there is no report {name!r}: there are {', '.join(REPORTS)}")
    if name == "continuity":  # a report on losses must not fail on them
        request = replace(request, source=replace(request.source, fail_on_data_loss=False))
    catalog = open_catalog(request.source)
    try:
        return ReportScope(request, catalog, internal=name in INTERNAL_TOO, progress=progress)
    except SourceError:
        catalog.close()
        raise


def run_report(spark: SparkSession, name: str, scope: ReportScope) -> Report:
    """Make the report of a scope that is not empty. Raises SourceError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from kafkawire_spark.session import sentence

    job = importlib.import_module(f"kafkawire_spark.reports.{name}")
    try:
        found: Report = job.run(spark, scope)
    except (PySparkException, Py4JError) as failure:
        raise TaskFailed(sentence(failure)) from failure
    return found


def nothing(name: str, scope: ReportScope) -> Report:
    """Return the report of an empty scope."""
    return Report(name, [f"There is nothing to report: {scope.words()}, without a record."])
