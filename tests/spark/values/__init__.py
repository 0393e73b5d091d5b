"""Tests of kafkawire.spark.pipeline.values."""
