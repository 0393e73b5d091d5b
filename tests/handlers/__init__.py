"""Tests of kafkawire.handlers."""
