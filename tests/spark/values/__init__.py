"""Tests of kafkawire_spark.pipeline.values."""
