"""Tests of kafkawire.groups."""
