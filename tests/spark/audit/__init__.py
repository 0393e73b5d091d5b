"""Tests of kafkawire_spark.audit."""
