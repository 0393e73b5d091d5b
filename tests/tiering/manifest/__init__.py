"""Tests of kafkawire.tiering.manifest."""
