"""Tests of kafkawire.log."""
