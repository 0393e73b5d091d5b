"""Tests of kafkawire.testing."""
