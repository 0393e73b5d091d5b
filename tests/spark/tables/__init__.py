"""Tests of kafkawire.spark.tables."""
