"""Tests of kafkawire_spark.source."""
