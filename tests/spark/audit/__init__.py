"""Tests of kafkawire.spark.audit."""
