"""Tests of kafkawire_spark.pipeline.tables."""
