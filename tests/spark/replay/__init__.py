"""Tests of kafkawire_spark.replay."""
