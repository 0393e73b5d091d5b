"""Tests of kafkawire_spark.reports."""
