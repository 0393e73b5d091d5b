"""Tests of kafkawire.spark.replay."""
