"""Tests of kafkawire_spark."""
