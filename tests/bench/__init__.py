"""Tests of kafkawire.bench."""
