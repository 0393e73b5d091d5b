"""Tests of kafkawire.restore."""
