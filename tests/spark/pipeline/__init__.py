"""Tests of kafkawire.spark.pipeline."""
