"""Tests of kafkawire.spark.values."""
