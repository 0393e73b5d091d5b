"""Tests of kafkawire.spark.source."""
