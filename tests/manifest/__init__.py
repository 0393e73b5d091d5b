"""Tests of kafkawire.manifest."""
