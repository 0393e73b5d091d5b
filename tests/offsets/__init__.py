"""Tests of kafkawire.offsets."""
