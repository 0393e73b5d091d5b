"""Tests of kafkawire.metadata."""
