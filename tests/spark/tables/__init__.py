"""Tests of kafkawire.spark.pipeline.tables."""
