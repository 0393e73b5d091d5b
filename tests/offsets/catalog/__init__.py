"""Tests of kafkawire.offsets.catalog."""
