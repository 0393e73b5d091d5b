"""Tests of kafkawire.tiering.restore."""
