"""Tests of kafkawire.spark.reports."""
