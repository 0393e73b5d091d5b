"""Tests of kafkawire.spark."""
