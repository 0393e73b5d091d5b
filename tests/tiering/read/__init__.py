"""Tests of kafkawire.tiering.read."""
