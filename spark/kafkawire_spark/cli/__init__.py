"""Commands about Spark tables: `kafkawire pipeline`."""

PIPELINE = {
    "run": "kafkawire_spark.cli.run:run",
    "compact": "kafkawire_spark.cli.run:compact",
    "audit": "kafkawire_spark.cli.audit:audit",
    "replay": "kafkawire_spark.cli.replay:replay",
    "query": "kafkawire_spark.cli.query:query",
    "report": "kafkawire_spark.cli.report:report",
}
"""The function of each command; the entry point of the group, which kafkawire.cli.app reads."""
